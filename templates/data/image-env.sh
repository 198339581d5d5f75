# The image's short digest, which names the caches of compiled code, and variables that Enroot's login shell removes.
# shellcheck shell=bash disable=SC2034 # lib/cache_folders.sh reads it
KIT_IMAGE_SHORT={{ image_short | sh }}
{% for name, value in image_env %}
export {{ name }}={{ value | sh }}
{% endfor %}
{% if containerized %}
# What a site's TaskProlog sets may be on the node only. A preloaded library without a slash is looked for, as on the node.
[[ -d "${TMPDIR:-/}" ]] || unset TMPDIR
[[ -z "${LD_PRELOAD:-}" ]] || for image_env_file in ${LD_PRELOAD//:/ }; do
    [[ "${image_env_file}" != */* || -e "${image_env_file}" ]] || unset LD_PRELOAD
done
{% endif %}
