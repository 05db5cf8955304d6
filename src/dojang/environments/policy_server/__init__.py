"""The policy behind an HTTP server that speaks the APIs of OpenAI and Anthropic.

requests     requests and replies without the form of an API; errors
fields       checked reading of JSON fields
openai_chat  POST /v1/chat/completions
openai_text  POST /v1/completions
anthropic    POST /v1/messages
sse          server-sent events of a reply
history      what was sampled before: finds the conversation that a request continues
session      one episode: samples replies and records their tokens
sessions     open sessions by key, inside a run and stand-alone
routes       the Starlette application
server       the server inside a run
records      sessions as lines of JSON, for `dojang serve policy --record`

Documented in docs/agents.md.
"""
