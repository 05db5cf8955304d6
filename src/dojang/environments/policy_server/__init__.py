"""The policy behind an HTTP server that speaks the APIs of OpenAI and Anthropic.

requests         requests and replies without the form of an API; errors
fields           checked reading of JSON fields
openai_messages  messages and tools of OpenAI's API
openai_chat      POST /v1/chat/completions
openai_text      POST /v1/completions
anthropic        POST /v1/messages
sse              server-sent events of a reply
history          finds the conversation that a request continues
show             replies as clients see them: text and tool calls
reward           rewards that clients post
training_trace   OpenEnv's TrainingTrace, from sessions and for their loss
session          one episode: samples replies and records their tokens
sessions         open sessions by key, inside a run and stand-alone
routes           the Starlette application
server           the server inside a run
records          sessions as lines of JSON, for `dojang serve policy --record`

Documented in docs/agents.md.
"""
