#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "tests/integration/server_fixture.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

struct BadField {
  std::string message;  // what the answer must start with
  std::function<void(v1::GenerateRequest&)> spoil;
};

std::vector<BadField> BadFields() {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  using R = v1::GenerateRequest;
  return {
      {"prompt: one of text, raw, tokens must be set", [](R& r) { r.clear_prompt(); }},
      {"text: must not be empty", [](R& r) { r.set_text(""); }},
      {"text: must have at most 1000 bytes, got 1001",
       [](R& r) { r.set_text(std::string(1001, 'x')); }},
      {"text: must have at most 900 tokens, got 1000",
       [](R& r) { r.set_text(std::string(1000, 'x')); }},
      {"raw: must not be empty", [](R& r) { r.set_raw(""); }},
      {"raw: must have at most 1000 bytes, got 1001",
       [](R& r) { r.set_raw(std::string(1001, 'x')); }},
      {"tokens.ids: must not be empty", [](R& r) { r.mutable_tokens(); }},
      {"tokens.ids: must have at most 900 tokens, got 901",
       [](R& r) {
         for (int i = 0; i < 901; ++i) r.mutable_tokens()->add_ids(1);
       }},
      {"tokens.ids[1]: must be below 257, the size of the vocabulary, got 257",
       [](R& r) {
         r.mutable_tokens()->add_ids(256);
         r.mutable_tokens()->add_ids(257);
       }},
      {"tokens.ids[0]: must be below 257, the size of the vocabulary, got 4294967295",
       [](R& r) { r.mutable_tokens()->add_ids(4294967295U); }},
      {"sampling.temperature: must be in [0, 100], got -0.5",
       [](R& r) { r.mutable_sampling()->set_temperature(-0.5F); }},
      {"sampling.temperature: must be in [0, 100], got 101",
       [](R& r) { r.mutable_sampling()->set_temperature(101); }},
      {"sampling.temperature: must be in [0, 100], got nan",
       [=](R& r) { r.mutable_sampling()->set_temperature(nan); }},
      {"sampling.top_p: must be in (0, 1], got 1.5",
       [](R& r) { r.mutable_sampling()->set_top_p(1.5F); }},
      {"sampling.top_p: must be in (0, 1], got 0",
       [](R& r) { r.mutable_sampling()->set_top_p(0); }},
      {"sampling.top_p: must be in (0, 1], got nan",
       [=](R& r) { r.mutable_sampling()->set_top_p(nan); }},
      {"sampling.min_p: must be in [0, 1], got -0.5",
       [](R& r) { r.mutable_sampling()->set_min_p(-0.5F); }},
      {"sampling.min_p: must be in [0, 1], got 1.5",
       [](R& r) { r.mutable_sampling()->set_min_p(1.5F); }},
      {"sampling.min_p: must be in [0, 1], got nan",
       [=](R& r) { r.mutable_sampling()->set_min_p(nan); }},
      {"sampling.repetition_penalty: must be in (0, 10], got 0",
       [](R& r) { r.mutable_sampling()->set_repetition_penalty(0); }},
      {"sampling.repetition_penalty: must be in (0, 10], got 10.5",
       [](R& r) { r.mutable_sampling()->set_repetition_penalty(10.5F); }},
      {"sampling.repetition_penalty: must be in (0, 10], got nan",
       [=](R& r) { r.mutable_sampling()->set_repetition_penalty(nan); }},
      {"sampling.presence_penalty: must be in [-2, 2], got -2.5",
       [](R& r) { r.mutable_sampling()->set_presence_penalty(-2.5F); }},
      {"sampling.presence_penalty: must be in [-2, 2], got nan",
       [=](R& r) { r.mutable_sampling()->set_presence_penalty(nan); }},
      {"sampling.frequency_penalty: must be in [-2, 2], got 2.5",
       [](R& r) { r.mutable_sampling()->set_frequency_penalty(2.5F); }},
      {"sampling.frequency_penalty: must be in [-2, 2], got nan",
       [=](R& r) { r.mutable_sampling()->set_frequency_penalty(nan); }},
      {"stop.max_tokens: must be in [1, 500], got 0",
       [](R& r) { r.mutable_stop()->set_max_tokens(0); }},
      {"stop.max_tokens: must be in [1, 500], got 501",
       [](R& r) { r.mutable_stop()->set_max_tokens(501); }},
      {"stop.max_tokens: must be in [1, 500], got 4294967295",
       [](R& r) { r.mutable_stop()->set_max_tokens(4294967295U); }},
      {"stop.strings: must have at most 16 entries, got 17",
       [](R& r) {
         for (int i = 0; i < 17; ++i) r.mutable_stop()->add_strings("x");
       }},
      {"stop.strings[1]: must have 1 to 256 bytes, got 0",
       [](R& r) {
         r.mutable_stop()->add_strings("x");
         r.mutable_stop()->add_strings("");
       }},
      {"stop.strings[0]: must have 1 to 256 bytes, got 257",
       [](R& r) { r.mutable_stop()->add_strings(std::string(257, 'x')); }},
      {"stop.token_ids: must have at most 64 entries, got 65",
       [](R& r) {
         for (int i = 0; i < 65; ++i) r.mutable_stop()->add_token_ids(1);
       }},
      {"stop.token_ids[0]: must be below 257, the size of the vocabulary, got 300",
       [](R& r) { r.mutable_stop()->add_token_ids(300); }},
      {"output.top_logprobs: must be in [0, 20], got 21",
       [](R& r) { r.mutable_output()->set_top_logprobs(21); }},
  };
}

ServerConfig SmallLimits() {
  ServerConfig config = TestConfig();
  config.limits.max_prompt_bytes = 1000;
  config.limits.max_prompt_tokens = 900;
  config.limits.max_max_tokens = 500;
  return config;
}

TEST(BadInputTest, EveryBadFieldIsNamedAndTheServerGoesOn) {
  ServerConfig config = SmallLimits();
  config.metrics_address = "127.0.0.1:0";
  TestServer server(config);
  const std::vector<BadField> bad_fields = BadFields();
  for (const BadField& bad : bad_fields) {
    v1::GenerateRequest request = Request("prompt", 5);
    bad.spoil(request);
    GenerateStream stream(server.inference(), request);
    const grpc::Status status = stream.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << bad.message;
    EXPECT_EQ(status.error_message(), bad.message);
    EXPECT_EQ(stream.started_count, 0);
    ExpectServes(server);
  }
  const auto refused = static_cast<double>(bad_fields.size());
  EXPECT_EQ(server.Metric(RequestsTotal("INVALID_ARGUMENT", "Generate")), refused);
  EXPECT_EQ(server.Metric("aft_rejected_total{model=\"fake\",reason=\"invalid\"}"), refused);
}

TEST(BadInputTest, ABadRequestIdIsRefused) {
  TestServer server;
  for (const std::string& id : {std::string(), std::string(129, 'x')}) {
    GenerateStream stream(server.inference(), Request("x", 1), [&](grpc::ClientContext& context) {
      context.AddMetadata("x-request-id", id);
    });
    const grpc::Status status = stream.Finish();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), StartsWith("x-request-id: "));
  }
  ExpectServes(server);
}

TEST(BadInputTest, ATextThatIsNotUtf8IsRefusedAndNotMisread) {
  TestServer server;
  GenerateStream stream(server.inference(), Request("broken \xff", 1));
  const grpc::Status status = stream.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("valid UTF-8"));
  ExpectServes(server);
}

// One call with any bytes, through gRPC's untyped client.
grpc::Status CallWithBytes(const std::string& address, const std::string& method,
                           const std::string& bytes) {
  grpc::GenericStub stub(TestServer::Connect(address));
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  auto call = stub.PrepareUnaryCall(&context, method, request, &queue);
  call->StartCall();
  grpc::ByteBuffer response;
  grpc::Status status;
  call->Finish(&response, &status, &queue);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status;
}

TEST(BadInputTest, BytesThatAreNoRequestAreRefused) {
  TestServer server;
  for (const std::string method : {"Generate", "Score", "Encode"}) {
    for (const std::string& bytes :
         {std::string("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11), std::string(100, '\xff'),
          std::string("\x0a\x05hi", 4)}) {
      const grpc::Status status =
          CallWithBytes(server.server().address(), "/aft.v1.InferenceService/" + method, bytes);
      EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
      EXPECT_THAT(status.error_message(), StartsWith("request: is no aft.v1." + method));
    }
  }
  ExpectServes(server);
}

TEST(BadInputTest, AnUnknownMethodIsUnimplemented) {
  TestServer server;
  EXPECT_EQ(
      CallWithBytes(server.server().address(), "/aft.v1.InferenceService/Dream", "").error_code(),
      grpc::StatusCode::UNIMPLEMENTED);
  ExpectServes(server);
}

TEST(BadInputTest, ARequestAboveTheMessageLimitIsRefused) {
  TestServer server(SmallLimits());
  GenerateStream stream(server.inference(), Request(std::string(8 << 20, 'x'), 1));
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  ExpectServes(server);
}

TEST(BadInputTest, APromptBeyondTheModelsLimitIsRefused) {
  FakeModelRunner::Options options;
  options.max_seq_len = 16;
  TestServer server(TestConfig(), options);
  GenerateStream stream(server.inference(), Request(std::string(17, 'x'), 1));
  const grpc::Status status = stream.Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("max_seq_len=16"));
}

}  // namespace
}  // namespace aft::server
