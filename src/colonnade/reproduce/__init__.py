"""The reproduction book: tables and figures of the papers, each repeated by one command."""
