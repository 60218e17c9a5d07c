#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aft/v1/inference.pb.h"
#include "server/api/openai/json_exchange.h"

namespace aft::server::openai {

// The endpoints /tokenize and /detokenize of vLLM's API.
class TokenExchange final : public JsonExchange {
 public:
  TokenExchange(bool detokenize, std::string id)
      : JsonExchange(detokenize ? Method::kDetokenize : Method::kTokenize, std::move(id)),
        detokenize_(detokenize) {}

  bool needs_engine() const override { return false; }
  ModelName model_name() const override { return {"model", model_, "model_version", ""}; }
  absl::Status CheckRequest() override;
  absl::StatusOr<DecodedRequest> Decode(const ServedModel& model,
                                        const LimitsConfig& limits) override;
  size_t held_bytes() const override { return outgoing_.value().capacity(); }

 private:
  const bool detokenize_;
  std::string model_;
  bool special_tokens_ = true;  // add_special_tokens
  v1::TokenizeRequest text_;
  v1::DetokenizeRequest tokens_;
};

}  // namespace aft::server::openai
