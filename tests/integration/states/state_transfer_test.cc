// Export and import of states as bytes, over real gRPC, between servers, and refused imports.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/lib/aft_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/states/state_fixture.h"
#include "tests/support/captured_log.h"
#include "tests/support/redis_server.h"

namespace aft::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class StateTransferTest : public StateTest {
 protected:
  // Exports a state into `bytes`.
  grpc::Status Export(const std::string& id, std::string& bytes, const Prepare& prepare = {}) {
    grpc::ClientContext context;
    if (prepare) prepare(context);
    v1::StateServiceExportRequest request;
    request.set_id(id);
    const auto reader = server_->states().Export(&context, request);
    v1::StateServiceExportResponse response;
    bytes.clear();
    while (reader->Read(&response)) bytes += response.chunk();
    return reader->Finish();
  }
  std::string Export(const std::string& id) {
    std::string bytes;
    const grpc::Status status = Export(id, bytes);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return bytes;
  }

  // Imports in pieces of `chunk` bytes and announces `announced` bytes; 0 stands for all.
  grpc::Status Import(const std::string& bytes, v1::StateServiceImportResponse& response,
                      size_t chunk = 100, size_t announced = 0) {
    grpc::ClientContext context;
    const auto writer = server_->states().Import(&context, &response);
    v1::StateServiceImportRequest request;
    request.set_bytes(announced != 0 ? announced : bytes.size());
    request.mutable_store();
    for (size_t at = 0; at < bytes.size(); at += chunk) {
      request.set_chunk(bytes.substr(at, chunk));
      if (!writer->Write(request)) break;
      request.Clear();
    }
    writer->WritesDone();
    return writer->Finish();
  }
  grpc::Status Import(const std::string& bytes, size_t chunk = 100, size_t announced = 0) {
    v1::StateServiceImportResponse response;
    return Import(bytes, response, chunk, announced);
  }
};

TEST_F(StateTransferTest, AnImportedStateContinuesLikeTheOriginal) {
  Start();
  const v1::State state = Run(Turn("hello", 10)).finished.state();
  const std::string bytes = Export(state.id());
  const std::vector<TokenId> expected = Run(Turn(" you", 5, state.id())).tokens;
  for (const size_t chunk : {size_t{7}, size_t{1'000'000}}) {
    v1::StateServiceImportResponse response;
    const grpc::Status status = Import(bytes, response, chunk);
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_NE(response.state().id(), state.id());
    EXPECT_EQ(response.state().tokens(), state.tokens());
    EXPECT_EQ(response.state().history(), state.history());
    EXPECT_EQ(Run(Turn(" you", 5, response.state().id())).tokens, expected);
  }
  v1::GenerateRequest brings = Turn(" you", 5);
  brings.mutable_previous()->set_state(bytes);
  EXPECT_EQ(Run(brings).tokens, expected);
  brings.mutable_previous()->set_state_id(state.id());
  EXPECT_THAT(Refused(brings), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("previous: must have one of")));
}

TEST_F(StateTransferTest, TheClientLibraryExportsAndImports) {
  Start();
  client::ClientOptions options;
  options.address = server_->server().address();
  const auto client = client::Client::Create(options);
  ASSERT_TRUE(client.ok()) << client.status();
  const v1::State state = Run(Turn("hello", 10)).finished.state();
  const auto bytes = (*client)->ExportState(state.id());
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(*bytes, Export(state.id()));
  const auto imported = (*client)->ImportState("fake", *bytes);
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ((*client)->GetState(imported->id())->history(), state.history());
  EXPECT_TRUE((*client)->DeleteState(imported->id()).ok());
  EXPECT_EQ((*client)->GetState(imported->id()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ((*client)->ListStates().status().code(), absl::StatusCode::kFailedPrecondition);
  // An import of several chunks is refused as a whole.
  EXPECT_EQ((*client)->ImportState("fake", std::string(1'000'000, 'x')).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// The client does not learn the id of the state, so it could never delete it.
TEST_F(StateTransferTest, AStateIsDeletedIfItsImportWasCancelledWhileItWasStored) {
  UseStateKey(folder_, config_);
  Start();
  const std::string bytes = Export(Run(Turn("hello", 10)).finished.state().id());
  std::promise<void> stores;
  std::promise<void> stored;
  std::atomic<int> lookups = 0;
  FakeRedis redis([&](const RedisCommand& command) -> std::string {
    if (command[0] != "EVAL") {
      ++lookups;
      return "$0\r\n\r\n";  // there is no such state
    }
    stores.set_value();
    stored.get_future().wait();
    return ":-1\r\n";
  });
  config_.states.redis.timeout = std::chrono::minutes(1);
  config_.states.redis.address = redis.address();
  Start();
  server_->WaitForMetric("aft_states_redis_up", 1);

  grpc::ClientContext context;
  v1::StateServiceImportResponse response;
  const auto writer = server_->states().Import(&context, &response);
  v1::StateServiceImportRequest request;
  request.set_bytes(bytes.size());
  request.set_chunk(bytes);
  request.mutable_store();
  EXPECT_TRUE(writer->Write(request));
  stores.get_future().wait();
  context.TryCancel();
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
  ExpectServes(*server_);  // the cancellation is before this request on the same connection
  stored.set_value();
  server_->WaitForMetric("aft_memory_used_bytes", 0);
  // A deletion looks up its state first. Redis gets the calls of a client in their order.
  EXPECT_EQ(Get(std::string(32, 'a')).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(lookups, 2);
}

// Transfers end like every other call of a removed client.
TEST_F(StateTransferTest, TransfersOfARemovedClientEnd) {
  KnowClients();
  config_.limits.write_stall = std::chrono::hours(1);
  options_.state_bytes = 1 << 20;
  Start();
  const v1::State state = Run(Turn("hello", 10), As("a")).finished.state();
  server_->WaitForMetric("aft_memory_used_bytes", 0);

  grpc::ClientContext importing;
  As("a")(importing);
  v1::StateServiceImportResponse imported;
  const auto writer = BeginImport(importing, imported);

  const auto stub = v1::StateService::NewStub(  // its window is smaller than a chunk
      TestServer::ConnectWithASmallWindow(server_->server().address()));
  grpc::ClientContext exporting;
  As("a")(exporting);
  v1::StateServiceExportRequest request;
  request.set_id(state.id());
  const auto reader = stub->Export(&exporting, request);
  reader->WaitForInitialMetadata();  // the export has begun

  WriteBytes(folder_.File("next"), "clients { name: 'b' certificate: 'b' }");
  std::filesystem::rename(folder_.File("next"), config_.security.clients_file);
  ASSERT_TRUE(server_->server().Reload(config_).ok());
  const auto revoked = StatusIs(absl::StatusCode::kUnauthenticated, "authorization: unknown token");
  EXPECT_THAT(writer->Finish(), revoked);
  v1::StateServiceExportResponse chunk;
  EXPECT_TRUE(reader->Read(&chunk));  // it was already on its way
  EXPECT_FALSE(reader->Read(&chunk));
  EXPECT_THAT(reader->Finish(), revoked);
  server_->WaitForMetric("aft_memory_used_bytes", 0);
}

TEST_F(StateTransferTest, ServersWithOneKeyContinueEachOthersConversations) {
  UseStateKey(folder_, config_);
  Start();
  const v1::State state = Run(Turn("hello", 10)).finished.state();
  const std::string bytes = Export(state.id());
  const std::vector<TokenId> expected = Run(Turn(" you", 5, state.id())).tokens;
  Start();  // another server
  v1::GenerateRequest brings = Turn(" you", 5);
  brings.mutable_previous()->set_state(bytes);
  EXPECT_EQ(Run(brings).tokens, expected);
  options_.fingerprint = 2;
  Start();
  EXPECT_THAT(Refused(brings),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("0000000000000001"), HasSubstr("0000000000000002"))));
  EXPECT_EQ(Import(bytes).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  config_.states.key_files.clear();
  Start();
  EXPECT_THAT(Import(bytes), StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("chunk: not a state that can be used here")));
  EXPECT_THAT(Refused(brings), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("previous.state: not a state")));
  EXPECT_EQ(server_->Metric("aft_states_refused_total{reason=\"invalid\"}"), 2);
}

// The model has read all of this state's text, so no token is pending. After the end of an output
// it need not read any more.
TEST_F(StateTransferTest, AnEndedStreamMayBringAStateWithoutAPendingToken) {
  Start();
  v1::ScoreRequest score;
  score.set_model("fake");
  score.set_raw("A");
  score.mutable_store();
  ScoreStream scored(server_->inference(), score);
  const grpc::Status status = scored.Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  const v1::State& state = scored.events.back().finished().state();
  EXPECT_FALSE(state.pending());
  v1::GenerateRequest request = Request("A", 1, /*seed=*/1);
  GenerateStream first(server_->inference(), request);
  ASSERT_TRUE(first.Finish().ok());
  request.mutable_resume()->add_token_ids(66);
  request.mutable_resume()->set_fingerprint(first.started.fingerprint());
  request.mutable_resume()->set_state(Export(state.id()));
  for (const bool store : {false, true}) {
    if (store) request.mutable_store();
    const GenerateStream resumed = Run(request);
    EXPECT_THAT(resumed.tokens, ::testing::IsEmpty());
    EXPECT_EQ(resumed.finished.limit(), "stop.max_tokens=1");
    EXPECT_EQ(resumed.finished.has_state(), store);
  }
}

TEST_F(StateTransferTest, AStreamThatAnotherKindOfServerBeganIsExactNowhere) {
  Start();
  const GenerateStream first = Run(Turn("hello", 4));
  v1::GenerateRequest request = Resumed(Request("hello", 10), first);
  v1::Resume& resume = *request.mutable_resume();
  const auto numerics_after = [&](const std::string& numerics) {
    resume.set_numerics(numerics);
    const GenerateStream rest = Run(request);
    EXPECT_EQ(rest.started.exact(), numerics == "fake");
    return rest.started.numerics();
  };
  EXPECT_EQ(numerics_after("AVX2"), "fake");  // this server has read all of the text
  resume.set_state(Export(first.finished.state().id()));
  EXPECT_EQ(numerics_after("fake"), "fake");
  EXPECT_EQ(numerics_after("AVX2"), "");
  EXPECT_EQ(server_->Metric("aft_streams_resumed_total{from=\"state\"}"), 2);
}

TEST_F(StateTransferTest, AStateWithWhichAStreamIsResumedIsCharged) {
  options_.state_bytes = 1 << 16;
  Start();
  const GenerateStream first = Run(Turn("hello", 4));
  v1::GenerateRequest request = Resumed(Request("hello", 10), first);
  request.mutable_resume()->set_state(Export(first.finished.state().id()));
  server_->WaitForMetric(kMemoryUsed, 0);
  server_->control().Hold();
  GenerateStream rest(server_->inference(), request);
  server_->control().WaitUntilBlocked();
  EXPECT_GE(server_->Metric(kMemoryUsed), kCall + options_.state_bytes);
  server_->control().Resume();
  EXPECT_TRUE(rest.Finish().ok());
}

TEST_F(StateTransferTest, APromptWhoseScoresAreMissingIsResumedFromItsText) {
  Start();
  v1::GenerateRequest begun = Turn("hel", 0);
  begun.set_prompt_logprobs(true);
  const GenerateStream first = Run(begun);
  v1::GenerateRequest request = Request("hello", 4);
  request.set_prompt_logprobs(true);
  request.mutable_resume()->set_fingerprint(first.started.fingerprint());
  request.mutable_resume()->set_state(Export(first.finished.state().id()));
  EXPECT_EQ(Run(request).finished.usage().scored_tokens(), 4U);
  EXPECT_EQ(server_->Metric("aft_streams_resumed_total{from=\"state\"}"), 0);
  EXPECT_EQ(server_->Metric("aft_streams_resumed_total{from=\"text\"}"), 1);
}

TEST_F(StateTransferTest, AStateOfAnOlderVersionMayBeLargerThanThoseOfTheNewestOne) {
  config_.limits.max_message_bytes = 1 << 20;
  config_.limits.max_max_tokens = config_.limits.default_max_tokens = 1000;
  FakeModelRunner::Options newest = options_;
  newest.fingerprint = 2;
  options_.state_bytes = 4 << 20;
  StartWithTwoVersions(newest);
  v1::GenerateRequest request = Turn("hello", 2);
  request.set_model("m");
  request.set_model_version("1");
  const std::string bytes = Export(Run(request).finished.state().id());
  const grpc::Status status = Import(bytes, /*chunk=*/500'000);
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(StateTransferTest, AnImportedStateIsInTheFolderBeforeItsIdIsKnown) {
  UseStateFolder(folder_, config_);
  Start();
  const std::string bytes = Export(Run(Turn("hello", 10)).finished.state().id());
  v1::StateServiceImportResponse response;
  ASSERT_TRUE(Import(bytes, response).ok());
  std::filesystem::rename(config_.states.folder, folder_.File("away"));
  EXPECT_THAT(Import(bytes), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("states.folder")));
  std::filesystem::rename(folder_.File("away"), config_.states.folder);
  server_.reset();
  Start();
  EXPECT_EQ(Export(response.state().id()), bytes);
  EXPECT_EQ(server_->Metric("aft_states"), 2);
}

TEST_F(StateTransferTest, AnImportMustHaveTheAnnouncedSize) {
  Start();
  const std::string good = Export(Run(Turn("hello", 10)).finished.state().id());
  const auto invalid = [](const std::string& message) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message));
  };
  EXPECT_THAT(Import(good, 100, good.size() - 1),
              invalid(absl::StrCat("chunk: more has arrived than bytes=", good.size() - 1)));
  EXPECT_THAT(Import(good, 100, good.size() + 1),
              invalid(absl::StrCat("only ", good.size(), " of bytes=", good.size() + 1)));
  EXPECT_THAT(Import(""), invalid("bytes: must be at least 1"));
  EXPECT_THAT(Import(good, 100, 100'000'000), invalid("bytes: must be in"));
  EXPECT_EQ(server_->Metric("aft_states"), 1);
  EXPECT_TRUE(Import(good).ok());
}

TEST_F(StateTransferTest, AnImportThatTakesTooLongEnds) {
  options_.state_bytes = 1 << 14;
  Start();
  const std::string bytes = Export(Run(Turn("hello", 10)).finished.state().id());
  config_.limits.max_request = std::chrono::milliseconds(1);
  Start();
  EXPECT_THAT(Import(bytes, /*chunk=*/1),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("limits.max_request_ms")));
}

// The client need not half-close the stream.
TEST_F(StateTransferTest, AnImportEndsWithItsLastByte) {
  Start();
  const std::string good = Export(Run(Turn("hello", 10)).finished.state().id());
  grpc::ClientContext context;
  context.AddMetadata("x-request-id", "mine");
  v1::StateServiceImportResponse response;
  const auto writer = server_->states().Import(&context, &response);
  v1::StateServiceImportRequest request;
  request.set_bytes(good.size());
  request.set_chunk(good);
  ASSERT_TRUE(writer->Write(request));
  EXPECT_TRUE(writer->Finish().ok());
  EXPECT_TRUE(Get(response.state().id()).ok());
  EXPECT_EQ(context.GetServerInitialMetadata().find("x-request-id")->second, "mine");
  EXPECT_EQ(context.GetServerTrailingMetadata().count("x-request-id"), 0u);
}

TEST_F(StateTransferTest, ARefusalForLackOfSpaceHasARetryHint) {
  config_.states.max_client_bytes = 20'000;
  Start();
  const std::string good = Export(Run(Turn("hello", 10)).finished.state().id());
  grpc::Status status;
  while (status.ok()) status = Import(good);
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("states.max_client_bytes")));
  grpc::ClientContext context;
  v1::StateServiceImportResponse response;
  const auto writer = server_->states().Import(&context, &response);
  v1::StateServiceImportRequest request;
  request.set_bytes(good.size());
  writer->Write(request);
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(context.GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 1u);
}

// Messages of these sizes are sent to Get and to Import.
class StateMessageTest : public StateTransferTest {
 protected:
  StateMessageTest() {
    config_.limits.max_message_bytes = 1 << 20;
    config_.limits.max_tensor_message_bytes = 4 << 20;  // gRPC accepts messages up to this size
    config_.limits.max_memory_bytes = config_.limits.max_client_memory_bytes = 100'000;
  }

  void ExpectRefused(size_t bytes, absl::StatusCode code, const std::string& message,
                     const std::string& hint) {
    grpc::ClientContext get_context;
    v1::StateServiceGetRequest get;
    get.set_id(std::string(bytes, 'x'));
    v1::StateServiceGetResponse got;
    EXPECT_THAT(server_->states().Get(&get_context, get, &got), StatusIs(code, HasSubstr(message)));
    EXPECT_EQ(RetryHintOf(get_context), hint);

    grpc::ClientContext import_context;
    v1::StateServiceImportResponse imported;
    const auto writer = server_->states().Import(&import_context, &imported);
    v1::StateServiceImportRequest request;
    request.set_chunk(get.id());
    writer->Write(request);
    EXPECT_THAT(writer->Finish(), StatusIs(code, HasSubstr(message)));
    EXPECT_EQ(RetryHintOf(import_context), hint);
  }
};

TEST_F(StateMessageTest, ACallThatIsTooLargeMustNotBeRetried) {
  Start();
  ExpectRefused(2'000'000, absl::StatusCode::kResourceExhausted, "larger than max", "-1");
}

TEST_F(StateMessageTest, ACallThatCanNeverHaveTheMemoryIsABadRequest) {
  Start();
  ExpectRefused(200'000, absl::StatusCode::kInvalidArgument, "more than max_client_memory_bytes",
                "");
  EXPECT_EQ(server_->Metric("aft_memory_refused_total"), 0);
}

// The watches hold all memory but that of one call without a message.
TEST_F(StateMessageTest, ACallWithoutMemoryMayBeRetried) {
  Start();
  std::deque<HealthWatch> watches;
  for (int i = 0; i < 5; ++i) ASSERT_NE(watches.emplace_back(*server_).Next(), HealthWatch::kEnd);
  ExpectRefused(25'000, absl::StatusCode::kResourceExhausted, "memory: ", "1000");
  for (HealthWatch& watch : watches) {
    watch.Cancel();
    watch.Finish();
  }
}

// Such a state could be received, but not opened or sealed.
TEST_F(StateTransferTest, AStateThatNeverFitsIntoTheMemoryIsRefusedBeforeItIsSent) {
  options_.state_bytes = 1 << 20;
  UseStateFolder(folder_, config_);
  Start();
  const std::string id = Run(Turn("hello", 10)).finished.state().id();
  const std::string bytes = Export(id);
  config_.limits.max_memory_bytes = config_.limits.max_client_memory_bytes =
      static_cast<int64_t>(bytes.size()) + 100'000;
  server_.reset();
  Start();
  const auto never = StatusIs(absl::StatusCode::kInvalidArgument,
                              HasSubstr("bytes, more than max_client_memory_bytes"));
  std::string exported;
  EXPECT_THAT(Export(id, exported), never);
  grpc::ClientContext context;
  v1::StateServiceImportResponse response;
  const auto writer = server_->states().Import(&context, &response);
  v1::StateServiceImportRequest request;
  request.set_bytes(bytes.size());
  EXPECT_TRUE(writer->Write(request));  // only the announcement
  EXPECT_THAT(writer->Finish(), never);
  EXPECT_EQ(RetryHintOf(context), "");
  EXPECT_EQ(server_->Metric("aft_memory_refused_total"), 0);
}

TEST_F(StateTransferTest, AnExportOfAnUnknownStateIsRefused) {
  Start();
  std::string bytes;
  EXPECT_THAT(Export(std::string(32, '0'), bytes),
              StatusIs(absl::StatusCode::kNotFound, "id: no state of this id"));
  EXPECT_THAT(Export(std::string(33, '0'), bytes),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("id: ")));
  EXPECT_THAT(Export("", bytes),
              StatusIs(absl::StatusCode::kInvalidArgument, "id: must not be empty"));
}

TEST_F(StateTransferTest, AnImportThatStallsIsCancelled) {
  const CapturedLog log;
  Start();
  const std::string good = Export(Run(Turn("hello", 10)).finished.state().id());
  config_.limits.write_stall = std::chrono::milliseconds(100);
  Start();
  grpc::ClientContext context;
  v1::StateServiceImportResponse response;
  const auto writer = server_->states().Import(&context, &response);
  v1::StateServiceImportRequest request;
  request.set_bytes(good.size());
  request.set_chunk(good.substr(0, 10));
  writer->Write(request);  // it fails if the server has cancelled the call before
  server_->WaitForMetric("aft_stuck_calls_total", 1);
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
  server_->WaitForMetric("aft_memory_used_bytes", 0);
  EXPECT_EQ(server_->Metric("aft_states_bytes"), 0);
  EXPECT_EQ(server_->Metric(RequestsTotal("RESOURCE_EXHAUSTED", "ImportState", "")), 1);
  EXPECT_THAT(log.Lines("request.done").back()["reason"], HasSubstr("it did not send"));
}

}  // namespace
}  // namespace aft::server
