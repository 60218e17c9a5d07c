#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/integration/server_fixture.h"

// Calls with several texts, of both methods that accept them.
namespace aft::server {

inline constexpr int kMany = 400;

// The answer to one text, without its times.
struct Answer {
  std::vector<std::string> parts;
  std::string finished;
  bool operator==(const Answer&) const = default;
};

struct ScoreMethod {
  using Request = v1::ScoreRequest;
  using Response = v1::ScoreResponse;
  using Stream = ScoreStream;
  static constexpr char kName[] = "Score";
  static constexpr char kModel[] = "fake";
  static StepGate& Gate(TestServer& server) { return server.control(); }
  static void Add(const Response& event, Answer& answer) {
    for (int i = 0; i < event.chunk().token_ids_size(); ++i) {
      answer.parts.push_back(absl::StrCat(event.chunk().token_ids(i), " ",
                                          event.chunk().logprobs(i).ShortDebugString()));
    }
  }
};

struct EncodeMethod {
  using Request = v1::EncodeRequest;
  using Response = v1::EncodeResponse;
  using Stream = EncodeStream;
  static constexpr char kName[] = "Encode";
  static constexpr char kModel[] = "encoder";
  static StepGate& Gate(TestServer& server) { return server.encoder_control(); }
  static void Add(const Response& event, Answer& answer) {
    for (const float value : event.vectors().values()) {
      answer.parts.push_back(absl::StrCat(absl::bit_cast<uint32_t>(value)));
    }
  }
};

// Encode with a language model.
struct HiddenMethod : EncodeMethod {
  static constexpr char kModel[] = "fake";
  static StepGate& Gate(TestServer& server) { return server.control(); }
};

inline std::string Text(size_t size, size_t which = 0) {
  std::string text(size, 'a');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>('a' + (i * 7 + which) % 26);
  return text;
}

template <typename Method>
class TextsTest : public testing::Test {
 protected:
  using Request = typename Method::Request;
  using Stream = typename Method::Stream;

  TextsTest() { config_.drain.grace = std::chrono::hours(1); }

  void Start() { server_ = std::make_unique<TestServer>(config_, options_, encoder_options_); }

  static Request Single(const std::string& text) {
    Request request;
    request.set_model(Method::kModel);
    request.set_text(text);
    return request;
  }
  static Request Several(const std::vector<std::string>& texts) {
    Request request;
    request.set_model(Method::kModel);
    for (const std::string& text : texts) request.add_texts()->set_text(text);
    return request;
  }
  static Request Several(size_t count, size_t size) {
    std::vector<std::string> texts;
    for (size_t i = 0; i < count; ++i) texts.push_back(Text(size, i));
    return Several(texts);
  }

  Stream Open(const Request& request, const typename Stream::Prepare& prepare = {}) {
    return Stream(server_->inference(), request, prepare);
  }
  Stream Run(const Request& request) {
    Stream stream = Open(request);
    const grpc::Status status = stream.Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return stream;
  }
  std::vector<Answer> AnswersOf(const Stream& stream, size_t texts = 1) {
    std::vector<Answer> answers(texts);
    for (const auto& event : stream.events) {
      Answer& answer = answers.at(event.index());
      Method::Add(event, answer);
      if (!event.has_finished()) continue;
      auto finished = event.finished();
      finished.clear_timings();
      if constexpr (requires { finished.clear_batch_rows(); }) finished.clear_batch_rows();
      answer.finished = "finished " + finished.ShortDebugString();
    }
    return answers;
  }
  grpc::Status Refused(const Request& request) {
    Stream stream = Open(request);
    const grpc::Status status = stream.Finish();
    EXPECT_TRUE(stream.events.empty());
    return status;
  }

  double Metric(const std::string& name) {
    return server_->Metric(absl::StrCat(name, "{model=\"", Method::kModel, "\"}"));
  }
  void WaitFor(const std::string& name, double value) {
    server_->WaitForMetric(absl::StrCat(name, "{model=\"", Method::kModel, "\"}"), value);
  }
  void ExpectCalls(const std::string& code, double count) {
    server_->WaitForMetric(RequestsTotal(code, Method::kName, Method::kModel), count);
  }
  // Waits until no call holds a slot, a place in the queue or memory.
  void WaitUntilIdle() {
    WaitFor("aft_slots_used", 0);
    WaitFor("aft_requests_waiting", 0);
    server_->WaitForMetric(kMemoryUsed, 0);
    EXPECT_EQ(Metric("aft_requests_running"), 0);
    EXPECT_TRUE(Open(Several(8, 3)).Finish().ok());  // fills all slots and the whole queue
    server_->WaitForMetric(kMemoryUsed, 0);
  }
  StepGate& gate() { return Method::Gate(*server_); }

  // Call before Start. Allows calls of kMany texts, which take a hundred steps.
  void TakeMany() {
    config_.limits.max_texts = kMany;
    config_.limits.max_queued_requests = config_.scheduling.max_client_queued_requests = kMany;
  }
  // Allows one step at a time until a call has ended with `code`. The pauses become longer, so that
  // a cancellation that the server learns of late does not find all texts read.
  void StepUntilCalls(const std::string& code) {
    const std::string calls = RequestsTotal(code, Method::kName, Method::kModel);
    for (std::chrono::milliseconds pause{0}; server_->Metric(calls) == 0; ++pause) {
      std::this_thread::sleep_for(pause);
      gate().AllowSteps(1);
    }
    gate().Resume();
  }

  ServerConfig config_ = [] {
    ServerConfig config = TestConfigWithEncoder();
    config.limits.max_queued_requests = config.scheduling.max_client_queued_requests = 4;
    return config;
  }();
  FakeModelRunner::Options options_;
  FakeEncoderRunner::Options encoder_options_;
  std::unique_ptr<TestServer> server_;
};

}  // namespace aft::server
