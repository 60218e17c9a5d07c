// Requests that fail before a codec sees them. That codecs refuse each bad field is tested in
// call_contract_refusal_test.cc and tests/unit/api/bad_field_test.cc.
#include <new>
#include <string>

#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "tests/integration/oip/fixture.h"
#include "tests/integration/raw_call.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/fake_loader.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::StartsWith;

TEST(BadInputTest, ACallWithoutMemoryIsRefusedWithResourceExhausted) {
  OipServer server(TestConfig(), FakeModels{.before_encoding = [](absl::string_view text) {
                     if (text == "too much") throw std::bad_alloc();
                   }});
  const auto refused = StatusIs(absl::StatusCode::kResourceExhausted, StartsWith("memory: "));
  GenerateStream stream(server.inference(), Request("too much", 1));
  EXPECT_THAT(stream.Finish(), refused);
  EXPECT_THAT(server.Infer(InferBuilder().Text("text_input", "too much").request()).status,
              refused);
  ExpectServes(server);
}

TEST(BadInputTest, ACallCancelledBeforeItsMessageIsCountedAsCancelled) {
  TestServer server(TestConfigWithMetrics());
  grpc::GenericStub stub(TestServer::Connect(server.server().address()));
  for (const char* const method : {"InferenceService/Generate", "ModelService/Get"}) {
    grpc::ClientContext context;
    grpc::CompletionQueue queue;
    auto call = stub.PrepareCall(&context, std::string("/aft.v1.") + method, &queue);
    void* tag = nullptr;
    bool ok = false;
    call->StartCall(nullptr);
    queue.Next(&tag, &ok);  // the call has started, but its message has not been sent
    context.TryCancel();
    grpc::Status status;
    call->Finish(&status, nullptr);
    queue.Next(&tag, &ok);
  }
  server.WaitForMetric(RequestsTotal("CANCELLED", "Generate", ""), 1);
  server.WaitForMetric(RequestsTotal("CANCELLED", "GetModel", ""), 1);
}

TEST(BadInputTest, BytesThatDoNotParseAreRefused) {
  TestServer server;
  const auto channel = TestServer::Connect(server.server().address());
  for (const std::string method : {"Generate", "Score", "Encode"}) {
    for (const std::string& bytes :
         {std::string("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11), std::string(100, '\xff'),
          std::string("\x0a\x05hi", 4), std::string("\x12\x01\xff")}) {
      EXPECT_THAT(
          RawCall(*channel, ("/aft.v1.InferenceService/" + method).c_str(), bytes).Finish(),
          StatusIs(
              absl::StatusCode::kInvalidArgument,
              "request: is no aft.v1." + method +
                  "Request; its strings must be valid UTF-8, and it may have at most 1200 fields"));
    }
  }
  ExpectServes(server);
}

}  // namespace
}  // namespace aft::server
