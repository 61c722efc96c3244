"""The chat template in the demo model's file, and its special tokens. dialogue.py writes the same text for
training."""

END = "<|endoftext|>"
"""Starts and ends every document."""
TURN_BEGINS, TURN_ENDS = "<|im_start|>", "<|im_end|>"

TEMPLATE = """\
{%- if tools %}{{ '<|im_start|>system\\n' }}{% if messages[0].role == 'system' %}\
{{ messages[0].content + '\\n\\n' }}{% endif %}{{ '# Tools\\n' }}{% for tool in tools %}\
{{ tool.function | tojson }}{{ '\\n' }}{% endfor %}\
{{ 'To call a tool, answer <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>\\n' }}\
{%- elif messages[0].role == 'system' %}{{ '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}\
{%- endif %}{% for message in messages %}{% if message.role == 'tool' %}\
{{ '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}\
{%- elif message.role == 'assistant' and message.tool_calls %}{{ '<|im_start|>assistant\\n' }}\
{% for call in message.tool_calls %}{{ '<tool_call>\\n{"name": ' }}{{ call.function.name | tojson }}\
{{ ', "arguments": ' }}{{ call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{% endfor %}\
{{ '<|im_end|>\\n' }}\
{%- elif message.role != 'system' %}\
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endif %}{% endfor %}\
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
