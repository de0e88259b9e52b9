"""`python -m agent`: how services start the agent, by the path of their Python and nothing from PATH."""

from agent.cli import main

main()
