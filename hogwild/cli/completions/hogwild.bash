_hogwild_completion() {
    local IFS=$'\n' line="${COMP_LINE:0:COMP_POINT}" words=()
    IFS=' ' read -ra words <<< "$line"
    [[ "$line" == *' ' ]] && words+=('')
    COMPREPLY=($(_HOGWILD_COMPLETE=bash "$1" "${words[@]:1}" 2>/dev/null))
    [[ ${#COMPREPLY[@]} -eq 1 && "${COMPREPLY[0]}" == *[=/.] ]] && compopt -o nospace
}
complete -F _hogwild_completion hogwild
