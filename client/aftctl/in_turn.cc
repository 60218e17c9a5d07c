#include "client/aftctl/in_turn.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace aft::client {

std::string InTurn::Take(size_t index, absl::string_view part, bool finished) {
  if (index >= texts_.size()) texts_.resize(index + 1);
  absl::StrAppend(&texts_[index].waiting, part);
  texts_[index].finished |= finished;
  std::string show;
  while (shown_ < texts_.size()) {
    Text& text = texts_[shown_];
    if (!text.waiting.empty()) line_ended_ = text.waiting.back() == '\n';
    show += std::exchange(text.waiting, "");
    if (!text.finished) break;
    if (++shown_ < texts_.size() && apart_) show += line_ended_ ? "\n" : "\n\n";
  }
  return show;
}

}  // namespace aft::client
