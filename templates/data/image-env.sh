# What Enroot's login shell takes away of the image's environment. Read by worker.sh and probe.sh.
# shellcheck shell=bash
{% for name, value in image_env %}
export {{ name }}={{ value | sh }}
{% endfor %}
