#include "server/call/exchange.h"

#include "absl/strings/str_cat.h"

namespace aft::server {

std::string Exchange::texts_field() const {
  const std::string path = TextPath(0);
  return path.substr(0, path.find('['));
}

absl::Status WrongTask(const ServedModel& model, Method method) {
  // A language model serves every method.
  const char* const task = model.tokenizer != nullptr ? "an encoder: it serves Encode"
                           : model.info.vocab_size == 0
                               ? "a bare mixer: it serves ModelInfer"
                               : "an encoder of images: it serves ModelInfer";
  return absl::FailedPreconditionError(
      absl::StrCat("model \"", model.config.name, "\" is ", task, ", not ", MethodName(method)));
}

}  // namespace aft::server
