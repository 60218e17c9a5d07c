// Turns of a conversation over real gRPC, with a fake model: which states requests store and
// continue from, which client may use a state, and how much memory states may take.
#include <chrono>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "google/protobuf/message.h"
#include "google/protobuf/unknown_field_set.h"
#include "gtest/gtest.h"
#include "model/api/sampling_params.h"
#include "tests/integration/states/state_fixture.h"
#include "tests/support/captured_log.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST_F(StateTest, AConversationContinuesFromAnyOfItsStates) {
  Start();
  const GenerateStream first = Run(Turn("hello", 10));
  const v1::State& state = first.finished.state();
  EXPECT_THAT(state.id(), SizeIs(32));
  EXPECT_EQ(state.model(), "fake");
  EXPECT_EQ(state.tokens(), 15U);
  EXPECT_GT(state.bytes(), 0U);
  EXPECT_TRUE(state.pending());
  EXPECT_LE(state.ttl_ms(), 3'600'000U);
  EXPECT_GT(state.ttl_ms(), 3'000'000U);

  SamplingParams params;
  params.seed = 7;
  FakeModelRunner::Text text(options_);
  text.Read(*FakeTokenizer().Encode("hello"));
  text.Sample(params, 10);
  // An edited turn is another answer from an older state. The two answers do not affect each other.
  for (const char* more : {" you", " there", " you"}) {
    SCOPED_TRACE(more);
    FakeModelRunner::Text next = text;
    next.Read(*FakeTokenizer().Encode(more));
    const GenerateStream second = Run(Turn(more, 5, state.id()));
    EXPECT_EQ(second.tokens, next.Sample(params, 5));
    EXPECT_EQ(second.started.prompt_tokens(), std::string(more).size());
    EXPECT_EQ(second.finished.usage().prompt_tokens(), std::string(more).size());
    EXPECT_NE(second.finished.state().id(), state.id());
    EXPECT_EQ(second.finished.state().tokens(), 15 + std::string(more).size() + 5);
    // Without new text the answer continues.
    v1::GenerateRequest empty = Turn("", 4, second.finished.state().id());
    EXPECT_EQ(Run(empty).tokens, next.Sample(params, 4));
  }
  EXPECT_EQ(server_->Metric("aft_states"), 7);
  EXPECT_EQ(server_->Metric("aft_states_stored_total"), 7);
}

TEST_F(StateTest, GetDescribesAState) {
  Start();
  v1::GenerateRequest request = Turn("hello", 3);
  request.mutable_store()->set_ttl_ms(86'400'000);
  const v1::State stored = Run(request).finished.state();
  v1::StateServiceGetResponse response;
  ASSERT_TRUE(Get(stored.id(), response).ok());
  EXPECT_EQ(response.state().tokens(), 8U);
  EXPECT_EQ(response.state().history(), stored.history());
  EXPECT_GT(response.state().ttl_ms(), 86'000'000U);
  EXPECT_TRUE(Delete(stored.id()).ok());
  EXPECT_THAT(Get(stored.id()), StatusIs(absl::StatusCode::kNotFound, "id: no state of this id"));
  EXPECT_THAT(Delete(stored.id()),
              StatusIs(absl::StatusCode::kNotFound, "id: no state of this id"));
  EXPECT_THAT(Refused(Turn("x", 3, stored.id())),
              StatusIs(absl::StatusCode::kNotFound, "previous.state_id: no state of this id"));
  EXPECT_EQ(server_->Metric("aft_states_bytes"), 0);
  EXPECT_EQ(server_->Metric("aft_rejected_total{model=\"fake\",reason=\"invalid\"}"), 1);
}

TEST_F(StateTest, ARequestMayHaveAFieldThatOnlyNewerClientsKnow) {
  Start();
  v1::StateServiceGetRequest request;
  request.set_id(Run(Turn("hello", 3)).finished.state().id());
  request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(
      100, std::string(200, 'x'));
  v1::StateServiceGetResponse response;
  EXPECT_TRUE(Ask<&v1::StateService::Stub::Get>(request, response).ok());
}

TEST_F(StateTest, ARequestIsGoodIfItIsGoodForTheVersionOfItsState) {
  FakeModelRunner::Options newest = options_;
  newest.fingerprint = 2;
  newest.vocab_size = options_.vocab_size - 1;
  StartWithTwoVersions(newest);
  v1::GenerateRequest first = Turn("x", 2);
  first.set_model("m");
  first.set_model_version("1");
  v1::GenerateRequest next = Turn("", 2, Run(first).finished.state().id());
  next.set_model("m");
  next.mutable_tokens()->add_ids(static_cast<uint32_t>(newest.vocab_size));
  EXPECT_EQ(Run(next).started.model_version(), "1");
  const std::string invalid = "aft_rejected_total{model=\"m\",reason=\"invalid\"}";
  EXPECT_EQ(server_->Metric(invalid), 0);
  // Without such a state it gets the error of the newest version.
  const auto refused =
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tokens.ids[0]: must be below 256"));
  next.mutable_previous()->set_state_id(std::string(32, '0'));
  EXPECT_THAT(Refused(next), refused);
  first.set_model_version("2");
  next.mutable_previous()->set_state_id(Run(first).finished.state().id());
  EXPECT_THAT(Refused(next), refused);
  EXPECT_EQ(server_->Metric(invalid), 2);
}

TEST_F(StateTest, AnEmptyPromptNeedsAnOutput) {
  Start();
  v1::GenerateRequest nothing = Turn("", 0, Run(Turn("hello", 3)).finished.state().id());
  nothing.set_prompt_logprobs(true);
  EXPECT_THAT(Refused(nothing), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("stop.max_tokens: must be at least 1")));
}

TEST_F(StateTest, PenaltiesAreChargedForTheTokensOfTheTextBefore) {
  options_.next_token = [](uint64_t /*hash*/, int64_t /*count*/) { return TokenId{'a'}; };
  Start();
  v1::GenerateRequest request = Request("x", 1);
  request.mutable_previous()->set_state_id(Run(Turn("abcdefgh", 1)).finished.state().id());
  request.mutable_sampling()->set_frequency_penalty(0.5F);
  server_->WaitForMetric(kMemoryUsed, 0);
  server_->control().Hold();
  GenerateStream stream(server_->inference(), request);
  // The text before has eight different tokens, and the prompt has another one. The vector of the
  // output's ids may take twice their memory.
  server_->WaitForMetric(kMemoryUsed, kCall + 3 * sizeof(TokenId) + 9 * sizeof(TokenUse));
  server_->control().Resume();
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(StateTest, AnExpiredStateIsNotFoundAndTheErrorSaysSo) {
  Start();
  v1::GenerateRequest request = Turn("hello", 3);
  request.mutable_store()->set_ttl_ms(1);
  const std::string id = Run(request).finished.state().id();
  grpc::Status status;
  do {
    status = Get(id);
  } while (status.ok());
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, "id: this state has expired"));
  EXPECT_THAT(Refused(Turn("x", 3, id)),
              StatusIs(absl::StatusCode::kNotFound, "previous.state_id: this state has expired"));
}

TEST_F(StateTest, BadFieldsAreNamed) {
  Start();
  const auto refused = [&](const auto& spoil) {
    v1::GenerateRequest request = Turn("x", 3);
    spoil(request);
    return Refused(request);
  };
  const auto invalid = [](const std::string& message) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message));
  };
  EXPECT_THAT(refused([](auto& request) { request.mutable_previous(); }),
              invalid("previous.state_id: must not be empty"));
  EXPECT_THAT(refused([](auto& request) {
                request.mutable_previous()->set_state_id(std::string(33, 'a'));
              }),
              invalid("previous.state_id: "));
  EXPECT_THAT(refused([](auto& request) { request.mutable_store()->set_ttl_ms(0); }),
              invalid("store.ttl_ms: must be in [1, 86400000], got 0"));
  EXPECT_THAT(refused([](auto& request) { request.mutable_store()->set_ttl_ms(86'400'001); }),
              invalid("store.ttl_ms: must be in [1, 86400000], got 86400001"));
  EXPECT_THAT(Get(""), invalid("id: must not be empty"));
  EXPECT_THAT(Get(std::string(33, 'a')), invalid("id: "));
  EXPECT_THAT(Delete(std::string(100'000, 'a')), invalid("request: must have at most 288 bytes"));
  v1::StateServiceListResponse listed;  // a request for a list has no field `id`
  EXPECT_THAT(List(listed, {}, std::string(300, 'a')),
              invalid("request: must have at most 288 bytes"));
  EXPECT_EQ(server_->control().step_count(), 0);
}

TEST_F(StateTest, AFullBudgetRefusesBeforeAnyWork) {
  config_.states.max_bytes = 8000;
  Start();
  const v1::GenerateRequest small = Turn("hello", 3);
  std::vector<std::string> ids;
  while (true) {
    const double before = server_->Metric("aft_states_bytes");
    const int64_t steps = server_->control().step_count();
    GenerateStream stream(server_->inference(), small);
    const grpc::Status status = stream.Finish();
    if (status.ok()) {
      ids.push_back(stream.finished.state().id());
      continue;
    }
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted,
                                 HasSubstr("exceed states.max_client_bytes=4000")));
    EXPECT_NE(stream.TrailingMetadata("grpc-retry-pushback-ms"), "");
    EXPECT_EQ(server_->control().step_count(), steps);
    EXPECT_EQ(server_->Metric("aft_states_bytes"), before);
    break;
  }
  EXPECT_EQ(server_->Metric("aft_states_refused_total{reason=\"full\"}"), 1);
  ASSERT_FALSE(ids.empty());
  EXPECT_TRUE(Delete(ids.front()).ok());
  Run(small);
  // The space for the longest possible answer is reserved from the beginning.
  EXPECT_THAT(Refused(Turn("hello", 1000)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("exceed states.max_client_bytes=4000")));
  ExpectServes(*server_);
}

TEST_F(StateTest, NoSpaceIsReservedForTokensBeyondTheModelsLength) {
  config_.states.max_bytes = 8000;
  options_.max_seq_len = 40;
  Start();
  EXPECT_EQ(Run(Turn("hello", 1000)).tokens.size(), 35U);
}

TEST_F(StateTest, ACancelledRequestStoresNothingAndFreesItsSpace) {
  config_.limits.max_max_tokens = 1'000'000;
  Start();
  const std::string id = Run(Turn("hello", 3)).finished.state().id();
  const double bytes = server_->Metric("aft_states_bytes");
  server_->control().Hold();
  // The stream is far from its end when the server notices the cancellation.
  GenerateStream stream(server_->inference(), Turn("x", 500'000, id));
  ASSERT_TRUE(stream.Next());
  EXPECT_GT(server_->Metric("aft_states_bytes"), bytes);
  stream.context().TryCancel();
  server_->control().Resume();
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::CANCELLED);
  server_->WaitForMetric("aft_states_bytes", bytes);
  EXPECT_EQ(server_->Metric("aft_states"), 1);
  EXPECT_TRUE(Get(id).ok());
}

// The state is stored before the client has read the end of the answer.
TEST_F(StateTest, AStateIsDeletedWhenItsRequestIsCancelledAfterStoring) {
  config_.limits.max_stream_buffer_bytes = 1 << 30;
  Start();
  v1::GenerateRequest request = Turn("x", 1000);
  request.mutable_stop()->set_ignore_eos(true);
  request.mutable_output()->set_top_logprobs(20);  // more than fits unread into the connection
  const auto stub = server_->StubWithASmallWindow();
  GenerateStream stream(*stub, request);
  server_->WaitForMetric("aft_states_stored_total", 1);
  stream.context().TryCancel();
  server_->WaitForMetric("aft_states", 0);
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(StateTest, AServerWithoutStatesRefusesThem) {
  config_.states.max_bytes = 0;
  Start();
  const auto off = StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("states.max_bytes"));
  EXPECT_THAT(Refused(Turn("x", 3)), off);
  v1::GenerateRequest request = Request("x", 3);
  request.mutable_previous()->set_state_id("a");
  EXPECT_THAT(Refused(request), off);
  EXPECT_THAT(Get("a"), off);
  EXPECT_THAT(Delete("a"), off);
  ExpectServes(*server_);
}

TEST_F(StateTest, WithoutKnownClientsStatesCannotBeListed) {
  Start();
  Run(Turn("x", 3));
  v1::StateServiceListResponse response;
  EXPECT_THAT(List(response),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("security.clients_file")));
}

TEST_F(StateTest, CallsAreLoggedWithTheirIds) {
  Start();
  const CapturedLog log;
  EXPECT_FALSE(Get("a", [](grpc::ClientContext& context) {
                 context.AddMetadata("x-request-id", "mine");
               }).ok());
  const std::vector<LogLine> lines = log.Lines("request.done");
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_EQ(lines[0]["id"], "mine");
  EXPECT_EQ(lines[0]["method"], "GetState");
  EXPECT_EQ(lines[0]["code"], "NOT_FOUND");
}

TEST_F(StateTest, CallsAreCountedByMethodAndStatus) {
  Start();
  const std::string id = Run(Turn("x", 3)).finished.state().id();
  EXPECT_TRUE(Get(id).ok());
  EXPECT_TRUE(Get(id).ok());
  EXPECT_TRUE(Delete(id).ok());
  EXPECT_FALSE(Delete(id).ok());
  v1::StateServiceListResponse list;
  EXPECT_FALSE(List(list).ok());
  grpc::ClientContext context;
  v1::StateServiceExportRequest request;
  request.set_id(id);
  EXPECT_FALSE(server_->states().Export(&context, request)->Finish().ok());
  EXPECT_EQ(server_->Metric(RequestsTotal("OK", "GetState", "")), 2);
  EXPECT_EQ(server_->Metric(RequestsTotal("OK", "DeleteState", "")), 1);
  EXPECT_EQ(server_->Metric(RequestsTotal("NOT_FOUND", "DeleteState", "")), 1);
  EXPECT_EQ(server_->Metric(RequestsTotal("FAILED_PRECONDITION", "ListStates", "")), 1);
  EXPECT_EQ(server_->Metric(RequestsTotal("NOT_FOUND", "ExportState", "")), 1);
  EXPECT_EQ(server_->Metric(RequestsTotal("OK", "ImportState", "")), 0);
}

// The server may learn that the client is gone after it has learned that no message comes any more.
TEST_F(StateTest, AnImportThatItsClientCancelsIsNotReportedAsABadRequest) {
  Start();
  constexpr int kImports = 50;
  for (int i = 0; i < kImports; ++i) {
    grpc::ClientContext context;
    v1::StateServiceImportResponse response;
    const auto writer = BeginImport(context, response);
    context.TryCancel();
    EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
    server_->WaitForMetric(kMemoryUsed, 0);
  }
  EXPECT_EQ(server_->Metric(RequestsTotal("CANCELLED", "ImportState", "")), kImports);
}

// The server knows its clients.
class OwnedStateTest : public StateTest {
 protected:
  OwnedStateTest() { KnowClients(); }
};

TEST_F(OwnedStateTest, TheStateOfAnotherClientLooksUnknown) {
  Start();
  const std::string id = Run(Turn("hello", 3), As("a")).finished.state().id();
  const std::string none(32, '0');
  EXPECT_TRUE(Get(id, As("a")).ok());
  EXPECT_EQ(Get(id, As("b")).error_message(), Get(none, As("b")).error_message());
  EXPECT_EQ(Get(id, As("b")).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Delete(id, As("b")).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Refused(Turn("x", 3, id), As("b")).error_message(),
            Refused(Turn("x", 3, none), As("b")).error_message());
  EXPECT_EQ(Get(id).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  Run(Turn("x", 3, id), As("a"));
}

// The bytes do not name their owner, so they must be kept as secret as the text.
TEST_F(OwnedStateTest, AnyClientThatHasTheBytesOfAnExportMayContinueFromThem) {
  Start();
  v1::StateServiceExportRequest exported;
  exported.set_id(Run(Turn("hello", 3), As("a")).finished.state().id());
  grpc::ClientContext context;
  As("a")(context);
  const auto reader = server_->states().Export(&context, exported);
  v1::GenerateRequest request = Request(" you", 3);
  for (v1::StateServiceExportResponse part; reader->Read(&part);) {
    request.mutable_previous()->mutable_state()->append(part.chunk());
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_EQ(Run(request, As("b")).tokens, Run(Turn(" you", 3, exported.id()), As("a")).tokens);
}

TEST_F(OwnedStateTest, ItsOwnerCanUseItAtTheNextServerToo) {
  UseStateFolder(folder_, config_);
  Start();
  const std::string id = Run(Turn("hello", 3), As("a")).finished.state().id();
  server_.reset();
  Start();
  EXPECT_TRUE(Get(id, As("a")).ok());
  EXPECT_EQ(Get(id, As("b")).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Delete(id, As("b")).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_TRUE(Delete(id, As("a")).ok());
}

TEST_F(OwnedStateTest, EveryClientListsItsOwnStates) {
  Start();
  std::set<std::string> ids;
  for (int i = 0; i < 101; ++i) ids.insert(Run(Turn("hello", 1), As("a")).finished.state().id());
  Run(Turn("hello", 1), As("b"));
  std::vector<std::string> listed;
  v1::StateServiceListResponse page;
  for (int pages = 0; pages < 2; ++pages) {
    ASSERT_TRUE(List(page, As("a"), listed.empty() ? "" : listed.back()).ok());
    EXPECT_EQ(page.states_size(), pages == 0 ? 100 : 1);
    for (const v1::State& state : page.states()) listed.push_back(state.id());
    page.clear_states();
  }
  EXPECT_EQ(listed, std::vector<std::string>(ids.begin(), ids.end()));
  ASSERT_TRUE(List(page, As("b")).ok());
  EXPECT_EQ(page.states_size(), 1);
}

}  // namespace
}  // namespace aft::server
