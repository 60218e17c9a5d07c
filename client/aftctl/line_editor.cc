#include "client/aftctl/line_editor.h"

#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace aft::client {
namespace {

constexpr int kHistoryLines = 1000;

char* Prompt(EditLine* /*editor*/) {
  static char prompt[] = "> ";
  return prompt;
}

// Unblocks SIGINT and SIGTERM while alive, with their default effects.
class SignalsThrough {
 public:
  SignalsThrough() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_UNBLOCK, &signals, &before_);
  }
  ~SignalsThrough() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace

LineEditor::LineEditor() : is_terminal_(isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1) {
  if (!is_terminal_) return;
  // NOLINTBEGIN(concurrency-mt-unsafe): no other thread runs yet.
  setlocale(LC_CTYPE, "");
  // The editor drops characters that the locale does not have. Texts are UTF-8.
  if (MB_CUR_MAX == 1) setlocale(LC_CTYPE, "C.UTF-8");
  // NOLINTEND(concurrency-mt-unsafe)
  HistEvent event;
  history_.reset(history_init());
  history(history_.get(), &event, H_SETSIZE, kHistoryLines);
  editor_.reset(el_init("aftctl", stdin, stdout, stderr));
  el_set(editor_.get(), EL_PROMPT, &Prompt);
  el_set(editor_.get(), EL_EDITOR, "emacs");
  el_set(editor_.get(), EL_SIGNAL, 1);  // signals restore the terminal first
  el_set(editor_.get(), EL_HIST, &history, history_.get());
}

std::optional<std::string> LineEditor::Read(const std::string& draft) {
  const SignalsThrough signals;
  if (!is_terminal_) {
    std::string line;
    if (!std::getline(std::cin, line)) return std::nullopt;
    return line;
  }
  if (!draft.empty()) el_push(editor_.get(), draft.c_str());
  int bytes = 0;
  const char* const typed = el_gets(editor_.get(), &bytes);
  if (typed == nullptr || bytes <= 0) return std::nullopt;
  const absl::string_view line = absl::StripSuffix({typed, static_cast<size_t>(bytes)}, "\n");
  HistEvent event;
  if (!line.empty()) history(history_.get(), &event, H_ENTER, std::string(line).c_str());
  return std::string(line);
}

}  // namespace aft::client
