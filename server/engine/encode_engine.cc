#include "server/engine/encode_engine.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "server/engine/check_requests.h"
#include "server/engine/pooling.h"

namespace aft::server {

// One accepted request.
struct EncodeEngine::Text final : BatchItem, Job {
  Text(EncodingRequest request, int64_t width, std::shared_ptr<VectorSink> vector_sink)
      : BatchItem(request.step_tokens(width), request.client->name, request.client->weight,
                  request.service_class, request.user),
        Job(static_cast<RequestHeader&&>(request), request.tokens(width), vector_sink),
        input(static_cast<EncoderInput&&>(request)),
        of_vectors(!input.vectors.empty()),
        pooling(request.pooling),
        normalize(request.normalize),
        kept(std::move(request.kept)),
        sink(std::move(vector_sink)) {}

  EncoderInput input;
  const bool of_vectors;
  const Pooling pooling;
  const bool normalize;
  const std::vector<uint8_t> kept;
  const std::shared_ptr<VectorSink> sink;
};

absl::StatusOr<std::unique_ptr<EncodeEngine>> EncodeEngine::Create(
    const EngineOptions& options, std::unique_ptr<EncoderRunner> runner, ModelMetrics& metrics) {
  const auto check = [](absl::string_view name, int64_t value, int64_t most) {
    if (value >= 1 && value <= most) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("batch.", name, ": must be in [1, ", most, "], got ", value));
  };
  const ModelConfig& model = options.model;
  AFT_RETURN_IF_ERROR(check("max_rows", model.max_batch_rows, runner->max_batch_rows()));
  AFT_RETURN_IF_ERROR(check("max_tokens", model.max_batch_tokens, runner->max_batch_tokens()));
  return absl::WrapUnique(new EncodeEngine(options, std::move(runner), metrics));
}

EncodeEngine::EncodeEngine(const EngineOptions& options, std::unique_ptr<EncoderRunner> runner,
                           ModelMetrics& metrics)
    : RequestLoop(options, static_cast<int32_t>(options.model.max_batch_rows),
                  /*strict_client_slots=*/0, metrics),
      runner_(std::move(runner)),
      info_(runner_->info()),
      batcher_({.max_rows = options_.model.max_batch_rows,
                .max_tokens = options_.model.max_batch_tokens,
                .max_delay = options_.model.max_batch_delay,
                .age = options_.scheduling.age}) {
  StartThread("aft-encode");
}

absl::StatusOr<RequestHandle> EncodeEngine::EncodeTexts(
    std::vector<EncodingRequest> requests, const std::vector<std::shared_ptr<VectorSink>>& sinks) {
  std::vector<std::unique_ptr<Job>> jobs;
  for (size_t i = 0; i < requests.size(); ++i) {
    if (absl::Status status = Check(requests[i]); !status.ok()) return RefuseInvalid(status);
    jobs.push_back(
        std::make_unique<Text>(std::move(requests[i]), runner_->input_width(), sinks[i]));
  }
  return AcceptTexts(std::move(jobs));
}

// Refuses a request for which the runner would refuse the whole batch.
absl::Status EncodeEngine::Check(const EncodingRequest& request) const {
  const int64_t batch = options_.model.max_batch_tokens;
  const int64_t longest = info_.max_seq_len == 0 ? batch : std::min(batch, info_.max_seq_len);
  const int64_t width = runner_->input_width();
  const int64_t tokens = request.tokens(width);
  const int64_t columns = request.image_width;
  if (request.vectors.empty()) {
    AFT_RETURN_IF_ERROR(CheckTokens(request.text, info_.vocab_size, longest));
  } else if (!request.text.empty() ||
             static_cast<int64_t>(request.vectors.size()) != tokens * width) {
    return absl::InvalidArgumentError(
        absl::StrCat("vectors: must be ", width, " numbers a token, and no text"));
  } else if (tokens > longest) {
    return absl::InvalidArgumentError(
        absl::StrCat("vectors: must be of at most ", longest, " tokens, got ", tokens));
  }
  AFT_RETURN_IF_ERROR(CheckForms(info_.forms, request, width));
  if (request.step_tokens(width) > batch || std::max(tokens, request.key_tokens(width)) > longest) {
    return absl::InvalidArgumentError(
        absl::StrCat("keys: must be at most ", longest, ", and with the queries ", batch));
  }
  const bool whole = info_.max_image_width == 0
                         ? columns == 0
                         : columns > 0 && columns <= info_.max_image_width && tokens % columns == 0;
  if (whole) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("image_width: the model does not accept ", tokens,
                                                 " tokens in rows of ", columns));
}

void EncodeEngine::Add(Job& job, TimePoint /*now*/) {
  batcher_.Add(static_cast<Text&>(job), job.arrival);
}

void EncodeEngine::Remove(Job& job, Outcome& outcome) {
  if (job.started_at) outcome.computed_tokens = static_cast<uint64_t>(job.tokens);
  batcher_.Remove(static_cast<Text&>(job));
}

TimePoint EncodeEngine::Advance() {
  const TimePoint now = Now();
  const TimePoint ready = batcher_.ReadyAt();
  if (now < ready) return ready;
  std::vector<Text*> batch;
  for (BatchItem* item : batcher_.Take(now)) batch.push_back(static_cast<Text*>(item));
  RunBatch(batch);
  return batcher_.ReadyAt();
}

void EncodeEngine::RunBatch(const std::vector<Text*>& batch) {
  const std::vector<Job*> jobs(batch.begin(), batch.end());
  const TimePoint begin = Now();
  BeginStep(jobs, begin);
  for (const Job* job : jobs) metrics_.requests_running.Add(job->service_class, 1);
  metrics_.slots_used.Set(static_cast<double>(batch.size()));
  absl::StatusOr<std::vector<TokenVectors>> vectors = RunModel(batch);
  const TimePoint end = Now();
  int64_t tokens = 0;
  for (const Job* job : jobs) tokens += job->tokens;
  ObserveStep(batch.size(), tokens, end - begin, end, vectors.status(), runner_->device_stats());
  if (!vectors.ok()) return FailStep(jobs, jobs.size(), vectors.status(), end);
  pacer_.Observe(/*decodes=*/0, tokens, end - begin);
  SetTokenSeconds(pacer_.prompt_token_seconds(), end);
  metrics_.batches.Add(batch.size(), end - begin);
  for (const Job* job : jobs) {
    metrics_.encoded_tokens[job->method].Increment(static_cast<double>(job->tokens));
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    Publish(*batch[i], std::move((*vectors)[i]), batch.size(), end);
  }
}

absl::StatusOr<std::vector<TokenVectors>> EncodeEngine::RunModel(const std::vector<Text*>& batch) {
  std::vector<EncoderInput> sequences;
  sequences.reserve(batch.size());
  for (Text* text : batch) sequences.push_back(std::move(text->input));
  AFT_ASSIGN_OR_RETURN(std::vector<TokenVectors> vectors, runner_->Encode(sequences));
  if (vectors.size() != batch.size()) {
    return absl::InternalError(
        absl::StrCat("the model encoded ", vectors.size(), " of ", batch.size(), " texts"));
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    const auto expected = static_cast<size_t>(batch[i]->tokens * runner_->width());
    if (vectors[i].size() == expected) continue;
    return absl::InternalError(
        absl::StrCat("the model made ", vectors[i].size(), " numbers instead of ", expected));
  }
  return vectors;
}

void EncodeEngine::Publish(Text& text, TokenVectors vectors, size_t batch_rows, TimePoint now) {
  std::vector<float> result =
      Pool(std::move(vectors), runner_->width(), text.pooling, text.normalize, text.kept);
  if (!text.of_vectors && !AllFinite(result)) return FailNotFinite(text, now);
  EndEncoded(text, *text.sink, std::move(result), batch_rows, now);
}

// Called between steps, when nothing runs.
void EncodeEngine::PublishGauges() {
  metrics_.requests_running.Set({});
  metrics_.slots_used.Set(0);
}

}  // namespace aft::server
