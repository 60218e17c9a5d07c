#include "client/aftctl/json.h"

#include <cmath>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/lib/error_details.h"

namespace aft::client {
namespace {

Json ToJson(const v1::Usage& usage) {
  Json json = {{"prompt_tokens", usage.prompt_tokens()},
               {"generated_tokens", usage.generated_tokens()}};
  if (usage.scored_tokens() > 0) json["scored_tokens"] = usage.scored_tokens();
  return json;
}

Json ToJson(const v1::Timings& timings) {
  return {{"queue_us", timings.queue_us()},
          {"first_token_us", timings.first_token_us()},
          {"total_us", timings.total_us()}};
}

Json ToJson(const v1::TokenLogprobs& logprobs) {
  Json json = {{"logprob", logprobs.logprob()}};
  if (logprobs.top().empty()) return json;
  Json& top = json["top"] = Json::array();
  for (const v1::Alternative& alternative : logprobs.top()) {
    top.push_back({{"token_id", alternative.token_id()}, {"logprob", alternative.logprob()}});
  }
  return json;
}

Json ToJson(const v1::Started& started) {
  return {{"event", "started"},
          {"model", started.model()},
          {"model_version", started.model_version()},
          {"seed", absl::StrCat(started.seed())},
          {"prompt_tokens", started.prompt_tokens()}};
}

Json ToJson(const v1::Delta& delta) {
  Json json = {{"event", "delta"},
               {"first_index", delta.first_index()},
               {"token_ids", Json::array()},
               {"text", delta.text()}};
  for (const uint32_t id : delta.token_ids()) json["token_ids"].push_back(id);
  if (delta.logprobs().empty()) return json;
  Json& logprobs = json["logprobs"] = Json::array();
  for (const v1::TokenLogprobs& token : delta.logprobs()) logprobs.push_back(ToJson(token));
  return json;
}

Json ToJson(const v1::Finished& finished) {
  Json json = {{"event", "finished"},
               {"reason", EnumWord(v1::FinishReason_Name(finished.reason()), "FINISH_REASON_")}};
  if (finished.has_stop_string()) json["stop_string"] = finished.stop_string();
  if (finished.has_stop_token_id()) json["stop_token_id"] = finished.stop_token_id();
  if (finished.has_limit()) json["limit"] = finished.limit();
  json["usage"] = ToJson(finished.usage());
  json["timings"] = ToJson(finished.timings());
  return json;
}

Json ToJson(const v1::ScoreStarted& started) {
  return {{"event", "started"},
          {"model", started.model()},
          {"model_version", started.model_version()},
          {"tokens", started.tokens()}};
}

Json ToJson(const v1::ScoreChunk& chunk) {
  Json json = {{"event", "chunk"},
               {"first_index", chunk.first_index()},
               {"token_ids", Json::array()},
               {"logprobs", Json::array()}};
  for (const uint32_t id : chunk.token_ids()) json["token_ids"].push_back(id);
  for (const v1::TokenLogprobs& token : chunk.logprobs()) json["logprobs"].push_back(ToJson(token));
  return json;
}

Json ToJson(const v1::ScoreFinished& finished) {
  return {{"event", "finished"},
          {"scored_tokens", finished.scored_tokens()},
          {"scored_bytes", finished.scored_bytes()},
          {"logprob", finished.logprob()},
          {"bits_per_byte", BitsPerByte(finished)},
          {"perplexity", finished.perplexity()},
          {"timings", ToJson(finished.timings())}};
}

Json ToJson(const v1::EncodeStarted& started) {
  return {{"event", "started"},
          {"model", started.model()},
          {"model_version", started.model_version()},
          {"tokens", started.tokens()},
          {"width", started.width()}};
}

Json ToJson(const v1::Vectors& vectors, uint32_t width) {
  Json json = {
      {"event", "vectors"}, {"first_index", vectors.first_index()}, {"vectors", Json::array()}};
  for (auto value = vectors.values().begin(); value != vectors.values().end(); value += width) {
    json["vectors"].push_back(std::vector<float>(value, value + width));
  }
  return json;
}

Json ToJson(const v1::EncodeFinished& finished) {
  return {{"event", "finished"},
          {"batch_rows", finished.batch_rows()},
          {"timings", ToJson(finished.timings())}};
}

}  // namespace

Json ToJson(const v1::ScoreResponse& response) {
  switch (response.event_case()) {
    case v1::ScoreResponse::kStarted:
      return ToJson(response.started());
    case v1::ScoreResponse::kChunk:
      return ToJson(response.chunk());
    case v1::ScoreResponse::kFinished:
      return ToJson(response.finished());
    case v1::ScoreResponse::EVENT_NOT_SET:
      break;
  }
  return {{"event", "unknown"}};
}

Json ToJson(const v1::EncodeResponse& response, uint32_t width) {
  switch (response.event_case()) {
    case v1::EncodeResponse::kStarted:
      return ToJson(response.started());
    case v1::EncodeResponse::kVectors:
      return ToJson(response.vectors(), width);
    case v1::EncodeResponse::kFinished:
      return ToJson(response.finished());
    case v1::EncodeResponse::EVENT_NOT_SET:
      break;
  }
  return {{"event", "unknown"}};
}

double BitsPerByte(const v1::ScoreFinished& finished) {
  if (finished.scored_bytes() == 0) return 0;
  return -finished.logprob() / std::log(2.0) / static_cast<double>(finished.scored_bytes());
}

Json ToJson(const v1::GenerateResponse& response) {
  switch (response.event_case()) {
    case v1::GenerateResponse::kStarted:
      return ToJson(response.started());
    case v1::GenerateResponse::kDelta:
      return ToJson(response.delta());
    case v1::GenerateResponse::kFinished:
      return ToJson(response.finished());
    case v1::GenerateResponse::EVENT_NOT_SET:
      break;
  }
  return {{"event", "unknown"}};
}

Json ToJson(const v1::Model& model) {
  Json json = {{"name", model.name()},
               {"version", model.version()},
               {"state", EnumWord(v1::ModelState_Name(model.state()), "MODEL_STATE_")}};
  if (!model.error().empty()) json["error"] = model.error();
  json.update({{"architecture", model.architecture()},
               {"parameters", model.parameters()},
               {"vocab_size", model.vocab_size()},
               {"max_seq_len", model.max_seq_len()},
               {"state_bytes", model.state_bytes()},
               {"state_bytes_per_token", model.state_bytes_per_token()},
               {"weight_bytes", model.weight_bytes()},
               {"weight_format", model.weight_format()},
               {"device", model.device()},
               {"slots", model.slots()},
               {"task", EnumWord(v1::Task_Name(model.task()), "TASK_")}});
  if (model.vector_width() > 0) json["vector_width"] = model.vector_width();
  return json;
}

Json ErrorToJson(const absl::Status& status) {
  const ErrorDetails details = GetErrorDetails(status);
  Json json = {{"event", "error"},
               {"code", absl::StatusCodeToString(status.code())},
               {"message", std::string(status.message())}};
  if (!details.request_id.empty()) json["request_id"] = details.request_id;
  if (details.retry_after) json["retry_after_ms"] = details.retry_after->count();
  if (details.usage) json["usage"] = ToJson(*details.usage);
  if (details.timings) json["timings"] = ToJson(*details.timings);
  return json;
}

std::string EnumWord(absl::string_view name, absl::string_view prefix) {
  absl::ConsumePrefix(&name, prefix);
  return name.empty() ? "unknown" : absl::AsciiStrToLower(name);
}

std::string Line(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace aft::client
