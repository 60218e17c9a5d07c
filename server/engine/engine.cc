#include "server/engine/engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/engine/engine_loop.h"

namespace aft::server {

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(EngineOptions options,
                                                       std::unique_ptr<ModelRunner> runner,
                                                       std::shared_ptr<const Tokenizer> tokenizer,
                                                       ModelMetrics& metrics) {
  if (runner->slots() < 1) return absl::InvalidArgumentError("slots: must be at least 1");
  if (options.max_step_tokens <= runner->slots()) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_step_tokens: ", options.max_step_tokens, " must be at least slots + 1 = ",
                     runner->slots() + 1, ", so that prompts advance beside all decodes"));
  }
  if (options.max_step_tokens > runner->max_step_tokens()) {
    return absl::InvalidArgumentError(absl::StrCat("max_step_tokens: ", options.max_step_tokens,
                                                   " exceeds the runner's ",
                                                   runner->max_step_tokens()));
  }
  if (options.max_queued_requests < 0 || options.max_queued_tokens < 0) {
    return absl::InvalidArgumentError(
        "max_queued_requests, max_queued_tokens: must not be negative");
  }
  return std::make_unique<EngineLoop>(std::move(options), std::move(runner), std::move(tokenizer),
                                      metrics);
}

}  // namespace aft::server
