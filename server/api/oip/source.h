#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "aft/v1/inference.pb.h"
#include "inference/grpc_service.pb.h"
#include "server/api/oip/answer.h"
#include "server/api/oip/inference.h"
#include "server/api/oip/tensors.h"
#include "server/config/config.h"
#include "server/registry/model_registry.h"

// What the requests of all kinds of models are read with.
namespace aft::server::kserve {

inline constexpr size_t kMaxParameterNameBytes = 64;
inline constexpr char kParameters[] = "parameters";

// A request, looked at by the names of what it holds.
struct Source {
  const LimitsConfig& limits;
  const ServedModel& model;
  Reply reply;
  std::vector<InputTensor> inputs;
  const google::protobuf::Map<std::string, inference::InferParameter>& parameters;
  AnswerForm form{};
  v1::Priority priority = v1::PRIORITY_UNSPECIFIED;

  // Null: it is not there.
  const InputTensor* Find(absl::string_view name) const;

  // `unset` when it is not there.
  absl::StatusOr<bool> Flag(absl::string_view name, bool unset = false) const;

  // The only one of these that is there; INVALID_ARGUMENT when not exactly one is.
  absl::StatusOr<const InputTensor*> FindOneOf(absl::Span<const char* const> names) const;
};

// "parameters.pooling"
std::string ParameterPath(absl::string_view name);

absl::StatusOr<bool> ReadFlag(absl::string_view name, const inference::InferParameter& parameter);

// INVALID_ARGUMENT names the first of `ids` outside the vocabulary, as an element of `path`.
absl::Status AddIds(absl::Span<const int64_t> ids, absl::string_view path, int64_t vocab_size,
                    v1::TokenIds& tokens);

// An error of a codec, in terms of the tensor that its text came in. `text`, `ids`: how they are
// called.
absl::Status RenameText(const absl::Status& error, absl::string_view text, absl::string_view ids);

}  // namespace aft::server::kserve
