"""What runs on the host: standard library only, loaded into one Python of the host's venv.

The client sends these modules as source over the session's standard input (`remote/agent.py`), so
nothing is installed on the host. They run under `python -I -S` on Python 3.10 or newer, and import
each other relatively: on the host they are a package of their own.
"""
