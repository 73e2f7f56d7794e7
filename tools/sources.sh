# SPDX-License-Identifier: MIT
# sources.sh - to be sourced: lists the files that formatters and linters check.

# The folders that exist: find fails if one is missing.
folders() {
    local folder
    for folder in "$@"; do
        if [[ -d $folder ]]; then echo "$folder"; fi
    done
}

c_files() {
    find $(folders include src serve bench preload kernel examples tests tools) \
        \( -name '*.[ch]' -o -name '*.[ch]pp' \) | sort
}

python_files() {
    find $(folders tools tests bench docs rouse kernel demos) -name '*.py' | sort
}
