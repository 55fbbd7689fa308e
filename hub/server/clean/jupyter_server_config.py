"""A server without its learner's settings: its terminals read no profile of the home either."""

c = get_config()  # noqa: F821
c.ServerApp.terminado_settings = {"shell_command": ["/bin/bash", "--noprofile", "--norc"]}
