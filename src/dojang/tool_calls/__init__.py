"""Tool calls in replies, in the formats that chat templates teach.

Parts
  calls.py            ToolCall, MalformedCall, ParsedReply; base class of the formats; thinking does not count
  json_calls.py       JSON between tags (Qwen2.5, Qwen3, Hermes), and JSON alone (Llama 3.1 and later)
  xml_calls.py        function and parameter tags (Qwen3-Coder, Qwen3.5, Nemotron 3), key and value tags (GLM-4.5)
  python_calls.py     a list of Python calls (LFM2)
  argument_values.py  values of arguments that a format writes as plain text, by the JSON schema of the tool
  json_types.py       types of JSON values, by their names in JSON schemas
  formats.py          which format a chat template writes, found by rendering calls and parsing them again

Parsing is exact: the text that a chat template writes for a call is parsed to this call. Text that was meant as a call
and is none is a MalformedCall, with the reason in the terms of the format.
"""
