// Requests that fail before a codec sees them. That codecs refuse each bad field is tested in
// call_contract_refusal_test.cc and tests/unit/api/bad_field_test.cc.
#include <new>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "grpcpp/generic/generic_stub.h"
#include "gtest/gtest.h"
#include "tests/integration/oip/fixture.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/fake_loader.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::StartsWith;

// Makes one call with any bytes, through gRPC's untyped client.
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

TEST(BadInputTest, ACallWithoutMemoryIsRefusedWithResourceExhausted) {
  KserveServer server(TestConfig(), FakeModels{.before_encoding = [](absl::string_view text) {
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
  for (const std::string method : {"Generate", "Score", "Encode"}) {
    for (const std::string& bytes :
         {std::string("\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11), std::string(100, '\xff'),
          std::string("\x0a\x05hi", 4), std::string("\x12\x01\xff")}) {
      EXPECT_THAT(
          CallWithBytes(server.server().address(), "/aft.v1.InferenceService/" + method, bytes),
          StatusIs(absl::StatusCode::kInvalidArgument,
                   "request: is no aft.v1." + method +
                       "Request; its strings must be valid UTF-8, its fields at most 1000"));
    }
  }
  ExpectServes(server);
}

}  // namespace
}  // namespace aft::server
