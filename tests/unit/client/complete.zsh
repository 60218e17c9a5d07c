# complete.zsh FOLDER LINE...: prints what an interactive zsh, which finds its completions in the folder, makes of each
# line when Tab is pressed at its end.
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1= PROMPT_EOL_MARK= fpath=(${(q)1} \$fpath)
  autoload -Uz compinit; compinit -D -u; bindkey '^I' complete-word
  show() { print -r -- \"<\$BUFFER>\"; BUFFER= }; zle -N show; bindkey '^X' show; print ready"
zpty -r -m shell text '*ready'$'\r\n'
for line in "${@:2}"; do
  zpty -w -n shell "$line"$'\t\x18'
  zpty -r -m shell text '*<*>*'
  text=${text##*<}
  print -r -- "${text%%>*}"
done
zpty -d shell
