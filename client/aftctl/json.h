#ifndef AFT_CLIENT_AFTCTL_JSON_H_
#define AFT_CLIENT_AFTCTL_JSON_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "aft/v1/inference.pb.h"
#include "aft/v1/models.pb.h"

// The JSON that aftctl prints. Names are those of the proto fields, enum values are lower-case
// words. A seed is a string, because many readers of JSON round integers beyond 2^53.
namespace aft::client {

using Json = nlohmann::ordered_json;

// {"event": "started" | "delta" | "finished", ...the event's fields}.
Json ToJson(const v1::GenerateResponse& response);
// "started" | "chunk" | "finished".
Json ToJson(const v1::ScoreResponse& response);
// "started" | "vectors" | "finished"; a vector is an array.
Json ToJson(const v1::EncodeResponse& response, uint32_t width);

Json ToJson(const v1::Model& model);

// {"event": "error", "code": "UNAVAILABLE", "message": ..., and what else is known}.
Json ErrorToJson(const absl::Status& status);

// "FINISH_REASON_EOS" -> "eos", "MODEL_STATE_READY" -> "ready".
std::string EnumWord(absl::string_view name, absl::string_view prefix);

// Of a scored text; 0 when nothing was scored.
double BitsPerByte(const v1::ScoreFinished& finished);

// One line. Never throws: strings that are not valid UTF-8 are mended.
std::string Line(const Json& json);

}  // namespace aft::client

#endif  // AFT_CLIENT_AFTCTL_JSON_H_
