# SPDX-License-Identifier: MIT
# sources.sh - to be sourced: which files the formatters and linters look at.

c_files() {
    find include src serve bench preload examples tests tools \
        \( -name '*.[ch]' -o -name '*.cpp' \) 2>/dev/null | sort
}

python_files() {
    find tools tests bench docs rouse -name '*.py' 2>/dev/null | sort
}
