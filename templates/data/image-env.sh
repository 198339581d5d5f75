# Variables of the image that Enroot's login shell removes. Read by worker.sh and probe.sh.
# shellcheck shell=bash
{% for name, value in image_env %}
export {{ name }}={{ value | sh }}
{% endfor %}
