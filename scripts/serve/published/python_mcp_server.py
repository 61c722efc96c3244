"""An MCP server over stdio with one tool: python mcp_server.py"""

from mcp.server.mcpserver import MCPServer

server = MCPServer("sums")


@server.tool()
def add(a: float, b: float) -> str:
    """Adds two numbers."""
    # The format of results that the demo model was trained on.
    return f'{{"sum": {a + b:g}}}'


server.run()
