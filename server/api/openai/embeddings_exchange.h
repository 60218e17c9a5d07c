#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/api/aft/encode_codec.h"
#include "server/api/openai/json_exchange.h"

namespace aft::server::openai {

// /v1/embeddings returns a vector for each input, pooled as the model's config says. /classify
// (from vLLM's API) returns the probability of each label of a classifier, whose logits are such a
// vector.
class EmbeddingsExchange final : public JsonExchange {
 public:
  EmbeddingsExchange(bool classify, std::string id)
      : JsonExchange(classify ? Method::kClassify : Method::kEmbeddings, std::move(id)) {}

  // ---- Exchange.
  ModelName model_name() const override { return {"model", request_.model(), "model_version", ""}; }
  absl::Status CheckRequest() override;
  absl::StatusOr<std::string> TakeUser() override { return std::move(user_); }
  absl::StatusOr<DecodedRequest> Decode(const ServedModel& model,
                                        const LimitsConfig& limits) override;
  std::string TextPath(uint32_t text) const override;
  void Prepare() override { request_ = {}; }
  using Exchange::Append;
  void Append(std::vector<float> vector, uint32_t sequence) override {
    vectors_[sequence] = std::move(vector);
  }
  void Drop() override { vectors_.clear(); }
  size_t held_bytes() const override;
  bool Finish(const Outcome& outcome, const v1::State* stored) override;
  size_t last_message_bytes() const override { return held_bytes(); }

 private:
  bool classifies() const { return method() == Method::kClassify; }
  void AppendEmbedding(const std::vector<float>& vector, std::string& text) const;
  OrderedJson Classification(const std::vector<float>& logits) const;

  v1::EncodeRequest request_;
  absl::StatusOr<std::string> user_;  // until TakeUser
  std::string model_;
  std::vector<std::string> labels_;  // only of a classifier
  bool base64_ = false;
  bool list_ = false;  // the request has a list of inputs
  EncodeCodec codec_;
  std::vector<std::vector<float>> vectors_;
};

}  // namespace aft::server::openai
