#include "client/aftctl/in_turn.h"

#include "absl/strings/str_cat.h"

namespace aft::client {

std::string InTurn::Title() const {
  return absl::StrCat("== ", shown_ + 1, " of ", texts_.size(), ", seed ", seed_ + shown_, " ==\n");
}

std::string InTurn::Take(const v1::GenerateResponse& event) {
  std::string show;
  if (event.has_started()) {
    seed_ = event.started().seed();
    return Title();
  }
  texts_[event.sequence()].waiting += event.delta().text();
  texts_[event.sequence()].finished |= event.has_finished();
  while (shown_ < texts_.size()) {
    Text& text = texts_[shown_];
    if (!text.waiting.empty()) line_ended_ = text.waiting.back() == '\n';
    show += text.waiting;
    text.waiting.clear();
    if (!text.finished) break;
    if (++shown_ == texts_.size()) break;
    absl::StrAppend(&show, line_ended_ ? "\n" : "\n\n", Title());
    line_ended_ = true;
  }
  return show;
}

}  // namespace aft::client
