#compdef hogwild
_hogwild() {
    local -a plain open
    local line word
    for line in "${(@f)$(_HOGWILD_COMPLETE=zsh "${words[1]}" "${(@Q)words[2,CURRENT]}" 2>/dev/null)}"; do
        word="${line%%$'\t'*}"
        [[ -z "$word" ]] && continue
        line="${word//:/\\:}:${line#*$'\t'}"
        [[ "$word" == *[=/.] ]] && open+=("$line") || plain+=("$line")
    done
    (( ${#plain} )) && _describe hogwild plain
    (( ${#open} )) && _describe hogwild open -S ''
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
compdef _hogwild hogwild
