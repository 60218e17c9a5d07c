#include "server/call/exchange.h"

#include "absl/strings/str_cat.h"

namespace aft::server {

std::string Exchange::texts_field() const {
  const std::string path = TextPath(0);
  return path.substr(0, path.find('['));
}

absl::Status WrongTask(const ServedModel& model, Method method) {
  const bool http = method == Method::kCompletions || method == Method::kChatCompletions ||
                    method == Method::kResponses || method == Method::kEmbeddings ||
                    method == Method::kClassify;
  const bool labels = !model.info.labels.empty();
  // A language model serves every method.
  const char* task = "an encoder of images: it serves ModelInfer";
  if (model.tokenizer != nullptr) {
    task = labels ? http ? "a classifier: it serves POST /classify"
                         : "a classifier: it serves ModelInfer (aftctl infer) and Encode"
           : http ? "an encoder: it serves POST /v1/embeddings"
                  : "an encoder: it serves Encode";
  } else if (labels) {
    task = "a classifier of images: it serves ModelInfer (aftctl infer over gRPC)";
  } else if (model.info.vocab_size == 0) {
    task = "a bare mixer: it serves ModelInfer";
  }
  return absl::FailedPreconditionError(
      absl::StrCat("model \"", model.config.name, "\" is ", task, ", not ", MethodName(method)));
}

}  // namespace aft::server
