function __hogwild_complete
    set -l words (commandline -opc) (commandline -ct)
    _HOGWILD_COMPLETE=fish $words[1] $words[2..-1] 2>/dev/null
end
complete --command hogwild --no-files --arguments '(__hogwild_complete)'
