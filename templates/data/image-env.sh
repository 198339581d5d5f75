# The image: its short digest, which names the caches of compiled code, and variables that Enroot's login shell removes. Read by
# worker.sh, shell.sh and probe.sh.
# shellcheck shell=bash
# shellcheck disable=SC2034 # lib/cache_folders.sh reads it
KIT_IMAGE_SHORT={{ image_short | sh }}
{% for name, value in image_env %}
export {{ name }}={{ value | sh }}
{% endfor %}
