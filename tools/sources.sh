# SPDX-License-Identifier: MIT
# sources.sh - to be sourced: which files the formatters and linters look at.

# Those of the folders that are there: a find that misses one fails.
folders() {
    local folder
    for folder in "$@"; do
        if [[ -d $folder ]]; then echo "$folder"; fi
    done
}

c_files() {
    find $(folders include src serve bench preload kernel examples tests tools) \
        \( -name '*.[ch]' -o -name '*.cpp' \) | sort
}

python_files() {
    find $(folders tools tests bench docs rouse kernel demos) -name '*.py' | sort
}
