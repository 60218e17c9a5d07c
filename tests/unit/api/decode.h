#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "server/config/config.h"
#include "server/registry/model_registry.h"
#include "tests/support/fake_tokenizer.h"

namespace aft::server {

// The properties of a model that a test may change. Its vocabulary has 257 tokens.
struct ModelFacts {
  int64_t max_seq_len = 0;
  int64_t max_batch_tokens = ModelConfig().max_batch_tokens;
  int64_t vector_width = 1;
  std::shared_ptr<const Tokenizer> tokenizer = std::make_shared<FakeTokenizer>();
};

// Decodes a request with `codec`, or with a new codec if that is null. Returns one engine request
// for each of its texts.
template <typename Codec>
auto DecodeEach(const typename Codec::Request& message, const ModelFacts& facts = {},
                const LimitsConfig& limits = {}, Codec* codec = nullptr) {
  ServedModel model;
  model.info.vocab_size = 257;
  model.info.max_seq_len = facts.max_seq_len;
  model.config.max_batch_tokens = facts.max_batch_tokens;
  model.vector_width = facts.vector_width;
  model.tokenizer = facts.tokenizer;
  typename Codec::Response response;
  Codec own;
  Codec& used = codec != nullptr ? *codec : own;
  auto request = used.Decode(message, limits, model, *response.mutable_started());
  using Requests = std::vector<typename decltype(request)::value_type>;
  if (!request.ok()) return absl::StatusOr<Requests>(request.status());
  if constexpr (requires { used.Split(*std::move(request)); }) {
    return absl::StatusOr<Requests>(used.Split(*std::move(request)));
  } else {
    return absl::StatusOr<Requests>(Requests{*std::move(request)});
  }
}

// As DecodeEach, but returns only the first request.
template <typename Codec>
auto Decode(const typename Codec::Request& message, const ModelFacts& facts = {},
            const LimitsConfig& limits = {}, Codec* codec = nullptr) {
  auto requests = DecodeEach<Codec>(message, facts, limits, codec);
  using Request = typename decltype(requests)::value_type::value_type;
  if (!requests.ok()) return absl::StatusOr<Request>(requests.status());
  return absl::StatusOr<Request>(std::move(requests->front()));
}

}  // namespace aft::server
