#include "tests/unit/client/fake_server.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aft/v1/inference.grpc.pb.h"
#include "aft/v1/models.grpc.pb.h"
#include "base/check.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace aft::client {
namespace {

void AddMetadata(const Script& script, grpc::CallbackServerContext& context) {
  if (script.send_request_id) {
    const auto given = context.client_metadata().find("x-request-id");
    std::string id = script.request_id.empty() ? "fake-1" : script.request_id;
    if (given != context.client_metadata().end()) {
      id.assign(given->second.data(), given->second.size());
    }
    context.AddInitialMetadata("x-request-id", id);
  }
  for (const auto& [key, value] : script.trailers) context.AddTrailingMetadata(key, value);
}

// The next of an endless stream; nothing for the methods that have none.
bool NextEndless(uint32_t index, v1::GenerateResponse& event) {
  event = DeltaEvent(index, "x");
  return true;
}
template <typename Response>
bool NextEndless(uint32_t /*index*/, Response& /*event*/) {
  return false;
}

// Writes the events one by one, then ends as the script says. Ends in one Finish, never beside a
// pending write.
template <typename Response>
class StreamReactor final : public grpc::ServerWriteReactor<Response> {
 public:
  StreamReactor(FakeServer& server, const Script& script, std::vector<Response> events)
      : server_(server), end_(script.end), status_(script.status), events_(std::move(events)) {
    this->StartSendInitialMetadata();
    Next(/*ok=*/true);
  }

  void OnWriteDone(bool ok) override { Next(ok); }
  void OnCancel() override {
    server_.RecordCancellation();
    MutexLock lock(mutex_);
    cancelled_ = true;
    if (!writing_) FinishOnce(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

 private:
  void Next(bool ok) {
    MutexLock lock(mutex_);
    writing_ = false;
    if (!ok || cancelled_) {
      FinishOnce(grpc::Status::CANCELLED);
    } else if (next_ < events_.size()) {
      Write(events_[next_++]);
    } else if (end_ == Script::End::kEndlessText && NextEndless(endless_index_++, endless_)) {
      Write(endless_);
    } else if (end_ == Script::End::kStatus) {
      FinishOnce(status_);
    }
  }

  void Write(const Response& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    writing_ = true;
    this->StartWrite(&event);
  }

  void FinishOnce(const grpc::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (finished_) return;
    finished_ = true;
    this->Finish(status);
  }

  FakeServer& server_;
  const Script::End end_;
  const grpc::Status status_;
  const std::vector<Response> events_;
  Mutex mutex_;
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  uint32_t endless_index_ ABSL_GUARDED_BY(mutex_) = 0;
  Response endless_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

class StalledReactor final : public grpc::ServerUnaryReactor {
 public:
  explicit StalledReactor(FakeServer& server) : server_(server) {}
  void OnCancel() override {
    server_.RecordCancellation();
    Finish(grpc::Status::CANCELLED);
  }
  void OnDone() override { delete this; }

 private:
  FakeServer& server_;
};

// Ends a unary call by the script; `fill` makes the response and its status when all is well.
template <typename Fill>
grpc::ServerUnaryReactor* Answer(FakeServer& server, grpc::CallbackServerContext& context,
                                 const Fill& fill) {
  const Script script = server.script();
  AddMetadata(script, context);
  if (script.end == Script::End::kStall && script.events.empty()) return new StalledReactor(server);
  grpc::ServerUnaryReactor* reactor = context.DefaultReactor();
  reactor->Finish(script.status.ok() ? fill() : script.status);
  return reactor;
}

}  // namespace

class FakeServer::Services {
 public:
  explicit Services(FakeServer& server) : inference_(server), models_(server), health_(server) {}

  void Register(grpc::ServerBuilder& builder) {
    builder.RegisterService(&inference_);
    builder.RegisterService(&models_);
    builder.RegisterService(&health_);
  }

 private:
  class Inference final : public v1::InferenceService::CallbackService {
   public:
    explicit Inference(FakeServer& server) : server_(server) {}
    grpc::ServerWriteReactor<v1::GenerateResponse>* Generate(
        grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override {
      return Start(*context, *request, &Script::events);
    }
    grpc::ServerWriteReactor<v1::ScoreResponse>* Score(grpc::CallbackServerContext* context,
                                                       const v1::ScoreRequest* request) override {
      return Start(*context, *request, &Script::score_events);
    }
    grpc::ServerWriteReactor<v1::EncodeResponse>* Encode(
        grpc::CallbackServerContext* context, const v1::EncodeRequest* request) override {
      return Start(*context, *request, &Script::encode_events);
    }

   private:
    template <typename Request, typename Response>
    grpc::ServerWriteReactor<Response>* Start(grpc::CallbackServerContext& context,
                                              const Request& request,
                                              std::vector<Response> Script::*events) {
      const Script script = server_.script();
      AddMetadata(script, context);
      server_.RecordRequest(request);
      return new StreamReactor<Response>(server_, script, script.*events);
    }

    FakeServer& server_;
  };

  class Models final : public v1::ModelService::CallbackService {
   public:
    explicit Models(FakeServer& server) : server_(server) {}
    grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context, const v1::ListRequest*,
                                   v1::ListResponse* response) override {
      return Answer(server_, *context, [&] {
        for (const v1::Model& model : server_.models()) *response->add_models() = model;
        return grpc::Status::OK;
      });
    }
    grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                  const v1::GetRequest* request,
                                  v1::GetResponse* response) override {
      return Answer(server_, *context, [&] {
        for (const v1::Model& model : server_.models()) {
          if (model.name() != request->name()) continue;
          *response->mutable_model() = model;
          return grpc::Status::OK;
        }
        return grpc::Status(grpc::NOT_FOUND, "no model \"" + request->name() + "\"");
      });
    }

   private:
    FakeServer& server_;
  };

  class Health final : public grpc::health::v1::Health::CallbackService {
   public:
    explicit Health(FakeServer& server) : server_(server) {}
    // "down" is not serving, "unknown" does not exist, everything else serves.
    grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context,
                                    const grpc::health::v1::HealthCheckRequest* request,
                                    grpc::health::v1::HealthCheckResponse* response) override {
      return Answer(server_, *context, [&] {
        if (request->service() == "unknown")
          return grpc::Status(grpc::NOT_FOUND, "no such service");
        response->set_status(request->service() == "down"
                                 ? grpc::health::v1::HealthCheckResponse::NOT_SERVING
                                 : grpc::health::v1::HealthCheckResponse::SERVING);
        return grpc::Status::OK;
      });
    }

   private:
    FakeServer& server_;
  };

  Inference inference_;
  Models models_;
  Health health_;
};

FakeServer::FakeServer() : services_(std::make_unique<Services>(*this)) {
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  services_->Register(builder);
  server_ = builder.BuildAndStart();
  AFT_CHECK(server_ != nullptr && port_ > 0);
  address_ = absl::StrCat("127.0.0.1:", port_);
}

FakeServer::~FakeServer() {
  // Past: calls that still run are cancelled, and their reactors finish then.
  server_->Shutdown(std::chrono::system_clock::now());
}

void FakeServer::SetScript(Script script) {
  MutexLock lock(mutex_);
  script_ = std::move(script);
}

Script FakeServer::script() const {
  MutexLock lock(mutex_);
  return script_;
}

void FakeServer::SetModels(std::vector<v1::Model> models) {
  MutexLock lock(mutex_);
  models_ = std::move(models);
}

std::vector<v1::Model> FakeServer::models() const {
  MutexLock lock(mutex_);
  return models_;
}

v1::GenerateRequest FakeServer::last_request() const {
  MutexLock lock(mutex_);
  return last_request_;
}

void FakeServer::WaitForRequests(int n) {
  MutexLock lock(mutex_);
  while (requests_ < n) changed_.Wait(mutex_);
}

void FakeServer::WaitForCancellations(int n) {
  MutexLock lock(mutex_);
  while (cancellations_ < n) changed_.Wait(mutex_);
}

int FakeServer::cancellations() const {
  MutexLock lock(mutex_);
  return cancellations_;
}

void FakeServer::RecordRequest(const v1::GenerateRequest& request) {
  MutexLock lock(mutex_);
  last_request_ = request;
  ++requests_;
  changed_.NotifyAll();
}

v1::ScoreRequest FakeServer::last_score() const {
  MutexLock lock(mutex_);
  return last_score_;
}

v1::EncodeRequest FakeServer::last_encode() const {
  MutexLock lock(mutex_);
  return last_encode_;
}

void FakeServer::RecordRequest(const v1::ScoreRequest& request) {
  MutexLock lock(mutex_);
  last_score_ = request;
  ++requests_;
  changed_.NotifyAll();
}

void FakeServer::RecordRequest(const v1::EncodeRequest& request) {
  MutexLock lock(mutex_);
  last_encode_ = request;
  ++requests_;
  changed_.NotifyAll();
}

void FakeServer::RecordCancellation() {
  MutexLock lock(mutex_);
  ++cancellations_;
  changed_.NotifyAll();
}

v1::GenerateResponse StartedEvent(uint64_t seed) {
  v1::GenerateResponse event;
  v1::Started& started = *event.mutable_started();
  started.set_model("fake");
  started.set_model_version("1");
  started.set_seed(seed);
  started.set_prompt_tokens(5);
  return event;
}

v1::GenerateResponse DeltaEvent(uint32_t first_index, const std::string& text) {
  v1::GenerateResponse event;
  v1::Delta& delta = *event.mutable_delta();
  delta.set_first_index(first_index);
  for (const char c : text) delta.add_token_ids(static_cast<unsigned char>(c));
  delta.set_text(text);
  return event;
}

v1::GenerateResponse FinishedEvent(uint32_t tokens) {
  v1::GenerateResponse event;
  v1::Finished& finished = *event.mutable_finished();
  finished.set_reason(v1::FINISH_REASON_LENGTH);
  finished.set_limit(absl::StrCat("stop.max_tokens=", tokens));
  finished.mutable_usage()->set_prompt_tokens(5);
  finished.mutable_usage()->set_generated_tokens(tokens);
  finished.mutable_timings()->set_queue_us(10);
  finished.mutable_timings()->set_first_token_us(1000);
  finished.mutable_timings()->set_total_us(2000);
  return event;
}

Script TextScript(const std::vector<std::string>& texts) {
  Script script;
  script.events.push_back(StartedEvent());
  uint32_t tokens = 0;
  for (const std::string& text : texts) {
    script.events.push_back(DeltaEvent(tokens, text));
    tokens += static_cast<uint32_t>(text.size());
  }
  script.events.push_back(FinishedEvent(tokens));
  return script;
}

Script ScoreScript() {
  Script script;
  script.score_events.resize(4);
  v1::ScoreStarted& started = *script.score_events[0].mutable_started();
  started.set_model("fake");
  started.set_tokens(3);
  double sum = 0;
  for (uint32_t i = 1; i <= 2; ++i) {
    v1::ScoreChunk& chunk = *script.score_events[i].mutable_chunk();
    chunk.set_first_index(i);
    chunk.add_token_ids(97 + i);
    v1::TokenLogprobs& token = *chunk.add_logprobs();
    token.set_logprob(-static_cast<float>(i));
    v1::Alternative& top = *token.add_top();
    top.set_token_id(5);
    top.set_logprob(-0.5F);
    sum += token.logprob();
  }
  v1::ScoreFinished& finished = *script.score_events[3].mutable_finished();
  finished.set_scored_tokens(2);
  finished.set_scored_bytes(2);
  finished.set_logprob(sum);
  finished.set_perplexity(std::exp(-sum / 2));
  return script;
}

Script EncodeScript() {
  Script script;
  script.encode_events.resize(4);
  v1::EncodeStarted& started = *script.encode_events[0].mutable_started();
  started.set_model("fake");
  started.set_tokens(2);
  started.set_width(2);
  for (const float value : {1.0F, 0.1F}) {
    script.encode_events[1].mutable_vectors()->add_values(value);
  }
  for (const float value : {-2.5F, 3.0F}) {
    script.encode_events[2].mutable_vectors()->add_values(value);
  }
  script.encode_events[2].mutable_vectors()->set_first_index(1);
  script.encode_events[3].mutable_finished()->set_batch_rows(4);
  return script;
}

}  // namespace aft::client
