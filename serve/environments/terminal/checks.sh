# What every check may use, besides bash and the programs in /usr/bin. It is sourced before the check.
# None of them is misled by a link, blocked by a FIFO or filled by a huge file in the place of a result.

# plain FILE: it is a regular file and no link
plain() { [[ -f $1 && ! -L $1 ]]; }

# text FILE: into $REPLY, its text without spaces at the ends of lines and empty lines at its ends; 200,000 characters at most
text() {
    local whole line tidy=
    plain "$1" && [[ -r $1 ]] || return 1
    IFS= read -r -N 200001 whole <"$1"
    (( ${#whole} <= 200000 )) || return 1
    trim "$whole"
}

# trim TEXT: the same, of a text
trim() {
    local line tidy=
    while IFS= read -r line; do
        tidy+="${line%"${line##*[![:space:]]}"}"$'\n'
    done <<<"$1"
    while [[ $tidy == $'\n'* ]]; do tidy=${tidy#$'\n'}; done
    while [[ $tidy == *$'\n' ]]; do tidy=${tidy%$'\n'}; done
    REPLY=$tidy
}

# equal WANTED GOT: they are the same but for such spaces
equal() {
    local wanted
    trim "$1"; wanted=$REPLY
    trim "$2"
    [[ $REPLY == "$wanted" ]] || { printf 'wanted: %.200s\ngot: %.200s\n' "$wanted" "$REPLY" >&2; return 1; }
}

# says FILE TEXT: this is its whole text, but for such spaces
says() {
    text "$1" || { printf '%s: no regular file of a fair size\n' "$1" >&2; return 1; }
    equal "$2" "$REPLY"
}

# gives TEXT COMMAND ...: the command ends well within 5 s, and this is its whole output
gives() {
    local wanted=$1 got
    shift
    got=$(timeout -k 1 5 "$@" 2>/dev/null </dev/null | head -c 200000; exit "${PIPESTATUS[0]}") || return 1
    equal "$wanted" "$got"
}

# fails COMMAND ...: the command ends within 5 s by itself, with an exit code but 0
fails() {
    local code
    timeout -k 1 5 "$@" >/dev/null 2>&1 </dev/null
    code=$?
    (( code != 0 && code < 124 ))
}

# python ...: without the policy's modules
python() { /usr/bin/python3 -I -S "$@"; }
