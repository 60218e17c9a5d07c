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

// Functions for reading the requests to all kinds of models.
namespace aft::server::oip {

inline constexpr size_t kMaxParameterNameBytes = 64;
inline constexpr char kParameters[] = "parameters";

// A request whose parts are found by name.
struct Source {
  const LimitsConfig& limits;
  const ServedModel& model;
  Reply reply;
  std::vector<InputTensor> inputs;
  const google::protobuf::Map<std::string, inference::InferParameter>& parameters;
  AnswerForm form{};
  v1::Priority priority = v1::PRIORITY_UNSPECIFIED;

  // The input of that name, or null.
  const InputTensor* Find(absl::string_view name) const;

  // Returns the flag of that name, or `unset` if it is not given.
  absl::StatusOr<bool> Flag(absl::string_view name, bool unset = false) const;

  // Returns the one input with one of these names. INVALID_ARGUMENT unless exactly one is given.
  absl::StatusOr<const InputTensor*> FindOneOf(absl::Span<const char* const> names) const;
};

// Returns a path such as "parameters.pooling".
std::string ParameterPath(absl::string_view name);

absl::StatusOr<bool> ReadFlag(absl::string_view name, const inference::InferParameter& parameter);

// Appends `ids` to `tokens`. INVALID_ARGUMENT names the first id outside the vocabulary as an
// element of `path`.
absl::Status AddIds(absl::Span<const int64_t> ids, absl::string_view path, int64_t vocab_size,
                    v1::TokenIds& tokens);

// Rewrites an error of a codec: it then names the tensor of the text. `text` and `ids` are the
// names of the two possible tensors.
absl::Status RenameText(const absl::Status& error, absl::string_view text, absl::string_view ids);

}  // namespace aft::server::oip
