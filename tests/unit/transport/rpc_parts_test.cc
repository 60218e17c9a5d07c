#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aft/v1/inference.pb.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/stubs/logging.h"
#include "grpc/grpc.h"
#include "grpc/support/log.h"
#include "gtest/gtest.h"
#include "server/api/aft/model_service.h"
#include "server/api/aft/option_rules.h"
#include "server/app/grpc_server.h"
#include "server/call/deadline.h"
#include "server/call/retry_hint.h"
#include "server/observability/log.h"
#include "server/transport/active_calls.h"
#include "server/transport/bind_error.h"
#include "server/transport/call_metadata.h"
#include "server/transport/message_bytes.h"
#include "tests/support/proto_text.h"
#include "tests/support/short_memory.h"

namespace aft::server {
namespace {

TEST(StatusTest, KeepsCodeAndMessageOfEveryStatus) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), "why");
    const grpc::Status converted = ToGrpcStatus(status, "id-1");
    EXPECT_EQ(static_cast<int>(converted.error_code()), code);
    const bool defect = status.code() == absl::StatusCode::kInternal;
    EXPECT_EQ(converted.error_message(), defect ? "internal error; request id id-1" : "why");
  }
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());
}

TEST(StatusTest, ALongMessageIsCutAtACharacter) {
  const auto message = [](const std::string& text) {
    return ToGrpcStatus(absl::NotFoundError(text)).error_message();
  };
  const std::string longest(2000, 'x');
  EXPECT_EQ(message(longest), longest);
  EXPECT_EQ(message(longest + "x"), longest + "... (1 more bytes)");
  for (size_t first = 1998; first <= 2000; ++first) {  // the bytes of the character that is cut
    const std::string whole = longest.substr(0, first);
    EXPECT_EQ(message(whole + "\u20ac"), whole + "... (3 more bytes)");
  }
  EXPECT_EQ(message(longest.substr(3) + "\u20ac"), longest.substr(3) + "\u20ac");
}

TEST(StatusTest, AnOperatorReadsTheReasonOfADefect) {
  EXPECT_EQ(ToOperatorStatus(absl::InternalError("why")).error_message(), "why");
  EXPECT_TRUE(ToOperatorStatus(absl::OkStatus()).ok());
}

TEST(RequestIdTest, NewIdsAreHexadecimalAndDiffer) {
  const std::string id = NewId();
  EXPECT_THAT(id, testing::MatchesRegex("[0-9a-f]{32}"));
  EXPECT_NE(id, NewId());
}

constexpr char kTraceparent[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(TraceparentTest, NamesTraceParentAndFlags) {
  std::optional<TraceContext> trace = ParseTraceparent(kTraceparent);
  ASSERT_TRUE(trace.has_value());
  EXPECT_EQ(trace->trace_id, "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(trace->parent_id, "00f067aa0ba902b7");
  EXPECT_EQ(trace->flags, "01");
  trace->span_id = "b7ad6b7169203331";
  EXPECT_EQ(trace->Traceparent(), "00-4bf92f3577b34da6a3ce929d0e0e4736-b7ad6b7169203331-01");
}

TEST(TraceparentTest, ReservedFlagsAreNotPassedOn) {
  const std::string ids = std::string(kTraceparent).substr(0, 53);
  for (const auto& [given, passed] :
       std::map<std::string, std::string>{{"00", "00"}, {"02", "02"}, {"fd", "01"}, {"ff", "03"}}) {
    const std::optional<TraceContext> trace = ParseTraceparent(ids + given);
    ASSERT_TRUE(trace.has_value()) << given;
    EXPECT_EQ(trace->flags, passed);
  }
}

TEST(TraceparentTest, KnownFieldsOfLaterVersionsAreRead) {
  const std::string known = std::string(kTraceparent).substr(2);
  for (const std::string& text :
       {"cc" + known, "01" + known + "-what-the-future-brings", "fe" + known + "-"}) {
    const std::optional<TraceContext> trace = ParseTraceparent(text);
    ASSERT_TRUE(trace.has_value()) << text;
    EXPECT_EQ(trace->parent_id, "00f067aa0ba902b7") << text;
  }
}

TEST(TraceparentTest, InvalidValuesAreRefused) {
  const std::string good = kTraceparent;
  const auto with = [&good](size_t at, const std::string& text) {
    return std::string(good).replace(at, text.size(), text);
  };
  for (const std::string& bad : {std::string(),
                                 std::string("00"),
                                 good.substr(0, 54),
                                 good + "0",
                                 good + "-",
                                 good + "-00",
                                 " " + good,
                                 good + " ",
                                 with(0, "ff"),
                                 with(0, "0g"),
                                 with(0, "0A"),
                                 with(2, "_"),
                                 with(35, "0"),
                                 with(52, "_"),
                                 with(3, std::string(32, '0')),
                                 with(36, std::string(16, '0')),
                                 with(3, "4BF92F"),
                                 with(34, "g"),
                                 with(36, "G"),
                                 with(51, "B"),
                                 with(53, "0x"),
                                 with(53, "A1"),
                                 with(10, std::string(1, '\0')),
                                 with(0, "01") + "0"}) {
    EXPECT_FALSE(ParseTraceparent(bad).has_value()) << bad;
  }
}

TEST(DeadlineTest, ACancelShortlyBeforeTheDeadlineCountsAsTheDeadline) {
  using std::chrono::milliseconds;
  const TimePoint start(std::chrono::hours(1));
  const auto ended = [&](int cancelled_ms, int deadline_ms) {
    return EndedByDeadline(start + milliseconds(cancelled_ms), start,
                           start + milliseconds(deadline_ms));
  };
  EXPECT_FALSE(ended(74, 100));  // a quarter of a short deadline
  EXPECT_TRUE(ended(75, 100));
  EXPECT_FALSE(ended(899, 1'000));  // at most 100 ms
  EXPECT_TRUE(ended(900, 1'000));
  EXPECT_FALSE(ended(9'799, 10'000));  // 2 % of a long deadline
  EXPECT_TRUE(ended(9'800, 10'000));
  EXPECT_TRUE(ended(10'001, 10'000));
  EXPECT_FALSE(EndedByDeadline(start, start, TimePoint::max()));
}

TEST(RetryHintTest, GrowsWithTheQueueAndTheLengthOfRequestsWithinBounds) {
  RetryHint hint;
  EXPECT_EQ(hint.After({.waiting = 0, .slots = 4}).count(), 100);
  const auto before = hint.After({.waiting = 16, .slots = 4});
  EXPECT_GT(before.count(), 100);
  EXPECT_GT(hint.After({.waiting = 32, .slots = 4}), before);
  for (int i = 0; i < 200; ++i) hint.Record(std::chrono::seconds(5));
  // For each slot four requests of 5 s wait. The hint is half of that.
  EXPECT_NEAR(static_cast<double>(hint.After({.waiting = 16, .slots = 4}).count()), 10'000, 1);
  EXPECT_EQ(hint.After({.waiting = 1'000'000, .slots = 1}).count(), 60'000);
}

TEST(MessageBytesTest, ANameAtTheBeginningIsReadWithoutTheRest) {
  const auto peek = [](const std::string& bytes) {
    const grpc::Slice slices[] = {bytes.substr(0, 3),
                                  bytes.substr(std::min<size_t>(3, bytes.size()))};
    return PeekStrings(grpc::ByteBuffer(slices, 2), /*last=*/1, /*most=*/4).front();
  };
  EXPECT_EQ(peek("\x0a\x02hi\x12\xff and what is no message"), "hi");
  EXPECT_EQ(peek("\x0a\x04"
                 "four"),
            "four");
  EXPECT_EQ(peek("\x0a\x05"
                 "fives"),
            std::nullopt);
  EXPECT_EQ(peek("\x0a\x04"
                 "cut"),
            std::nullopt);
  EXPECT_EQ(peek("\x0a"), std::nullopt);
  EXPECT_EQ(peek("\x12\x02no\x0a\x02hi"), "");
  EXPECT_EQ(peek("\x08\x02"), "");  // the field is a number
  EXPECT_EQ(peek(""), "");
}

// Parses the bytes as a GenerateRequest, in two slices and in one. Returns it as text, or the
// error.
absl::StatusOr<std::string> Parsed(const std::string& bytes) {
  const grpc::Slice slices[] = {bytes.substr(0, bytes.size() / 2), bytes.substr(bytes.size() / 2)};
  const grpc::ByteBuffer two(slices, 2);
  const grpc::Slice whole(bytes);
  v1::GenerateRequest message;
  v1::GenerateRequest other;
  const absl::Status status = ParseMessage(two, message);
  EXPECT_EQ(status, ParseMessage(grpc::ByteBuffer(&whole, 1), other));
  EXPECT_EQ(two.Length(), bytes.size());  // unchanged
  if (!status.ok()) return status;
  EXPECT_EQ(message.ShortDebugString(), other.ShortDebugString());
  return message.ShortDebugString();
}

std::string Repeated(int count, const std::string& text) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

// A field of bytes.
std::string Field(char tag, const std::string& bytes) {
  std::string text(1, tag);
  size_t size = bytes.size();
  for (; size >= 0x80; size >>= 7) text.push_back(static_cast<char>(size | 0x80));
  text.push_back(static_cast<char>(size));
  return text + bytes;
}

TEST(MessageBytesTest, AMessageMayHave1200FieldsApartFromListedNumbers) {
  const std::string ids = "\x08\x01";                 // token ids, one by one
  const std::string wrong = "\x0d\1\1\1\1";           // a token id as fixed32
  const std::string name = "\x0a\x02hi";              // the model's name
  const std::string unknown = "\x78\x01";             // field 15
  const std::string stop = std::string("\x12\0", 2);  // an empty stop string
  EXPECT_TRUE(Parsed(Repeated(1200, name)).ok());
  EXPECT_FALSE(Parsed(Repeated(1201, name)).ok());
  EXPECT_TRUE(Parsed(Repeated(1200, unknown)).ok());
  EXPECT_FALSE(Parsed(Repeated(1201, unknown)).ok());
  EXPECT_TRUE(Parsed(Field('\x32', Repeated(1199, stop))).ok());
  EXPECT_FALSE(Parsed(Field('\x32', Repeated(1200, stop))).ok());
  EXPECT_TRUE(Parsed(Field('\x22', Repeated(10'000, ids))).ok());
  EXPECT_TRUE(Parsed(Field('\x22', Field('\x0a', std::string(10'000, '\1')))).ok());
  EXPECT_TRUE(Parsed(Field('\x22', Repeated(1199, wrong))).ok());
  EXPECT_FALSE(Parsed(Field('\x22', Repeated(1200, wrong))).ok());
  EXPECT_EQ(Parsed(Repeated(2000, unknown)).status(),
            absl::InvalidArgumentError("request: is no aft.v1.GenerateRequest; its strings must be "
                                       "valid UTF-8, and it may have at most 1200 fields"));
}

// The limit of fields must not refuse a request whose options are all within their own limits.
TEST(MessageBytesTest, EveryOptionMayHaveItsMostEntriesAtTheSameTime) {
  v1::GenerateRequest request;
  request.set_model("hi");
  request.set_text("prompt");
  int lists = 0;
  for (const OptionRule& rule : OptionRules()) {
    google::protobuf::Message& part = PartOf(rule, request);
    const google::protobuf::Reflection& reflection = *part.GetReflection();
    lists += rule.field->is_repeated() ? 1 : 0;
    for (uint32_t i = 0; i < rule.about->max_entries(); ++i) {
      if (rule.field->is_map()) {
        google::protobuf::Message& entry = *reflection.AddMessage(&part, rule.field);
        const google::protobuf::Descriptor& type = *entry.GetDescriptor();
        entry.GetReflection()->SetUInt32(&entry, type.map_key(), i);
        entry.GetReflection()->SetFloat(&entry, type.map_value(), 1);
      } else if (rule.field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_STRING) {
        reflection.AddString(&part, rule.field, "x");
      } else {
        reflection.AddUInt32(&part, rule.field, i);
      }
    }
  }
  EXPECT_GE(lists, 6);
  const absl::StatusOr<std::string> parsed = Parsed(request.SerializeAsString());
  EXPECT_TRUE(parsed.ok()) << parsed.status();
}

TEST(MessageBytesTest, BytesThatAreNoMessageAreRefused) {
  EXPECT_EQ(*Parsed(""), "");
  EXPECT_EQ(*Parsed("\x0a\x02hi\x22\x04\x0a\x02\x01\x02"),
            "model: \"hi\" tokens { ids: 1 ids: 2 }");
  for (const std::string& bytes : {
           std::string("\x0a\x03hi"),                  // a string beyond the end
           std::string("\x0a\xff\xff\xff\xff\x07hi"),  // a string of 2 GiB
           std::string("\x0a\x02\xc3\x28"),            // a string that is not UTF-8
           std::string("\x22\x03\x0a\x01"),            // a message beyond the end
           std::string("\x22\x02\x0a\x05\x01"),        // a list beyond its message
           std::string("\x7b\x7c"),                    // a group
           std::string("\x7c"),                        // the end of a group
           std::string("\x0f"),                        // an unknown wire type
           std::string("\0", 1),                       // field 0
       }) {
    EXPECT_FALSE(Parsed(bytes).ok()) << testing::PrintToString(bytes);
  }
  v1::GenerateRequest message;
  EXPECT_FALSE(ParseMessage(grpc::ByteBuffer(), message).ok());  // there are no bytes at all
}

// The message has 60 kB, and neither of its strings has more than 30 kB.
TEST(MessageBytesTest, AMessageWithoutMemoryIsRefused) {
  v1::GenerateRequest message;
  message.set_model(std::string(30'000, 'm'));
  message.set_text(std::string(30'000, 't'));
  const std::string text = message.SerializeAsString();
  const grpc::Slice slices[] = {text.substr(0, 20'000), text.substr(20'000)};
  const grpc::ByteBuffer two(slices, 2);
  const grpc::Slice whole(text);
  grpc::ByteBuffer written(&whole, 1);
  v1::GenerateRequest parsed;
  {
    const ShortMemory none(50'000);
    EXPECT_EQ(ParseMessage(two, parsed).code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(SerializeMessage(message, written).code(), absl::StatusCode::kResourceExhausted);
    EXPECT_FALSE(written.Valid());
    // The bytes of a single slice are parsed where they are.
    EXPECT_TRUE(ParseMessage(grpc::ByteBuffer(&whole, 1), parsed).ok());
  }
  EXPECT_TRUE(SerializeMessage(message, written).ok());
  EXPECT_TRUE(ParseMessage(written, parsed).ok());
  EXPECT_EQ(parsed.SerializeAsString(), text);
}

struct SilentCall : ActiveCall {
  explicit SilentCall(grpc::CallbackServerContext& context) : ActiveCall(context) {}
  void OnRevoked(const absl::Status& /*why*/) override {}
  void OnStuck(Duration /*waited*/) override {}
};

TEST(ActiveCallsTest, WaitsUntilNoCallIsLeftOrForTheDeadline) {
  prometheus::Registry registry;
  ServerMetrics metrics(registry, {.version = "test"});
  ActiveCalls active(std::chrono::hours(1), metrics);
  active.WaitForNone(TimePoint::max());
  grpc::CallbackServerContext context;
  const auto one = std::make_shared<SilentCall>(context);
  active.Add(one);
  const TimePoint deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  active.WaitForNone(deadline);
  EXPECT_GE(std::chrono::steady_clock::now(), deadline);
  std::atomic<bool> ended = false;
  std::thread call([&] {
    ended = true;
    active.Remove(one.get());
  });
  active.WaitForNone(TimePoint::max());
  EXPECT_TRUE(ended);
  call.join();
}

TEST(BindErrorTest, SaysWhyAnAddressCannotBeUsed) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int reuse = 1;  // as servers do
  ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof(reuse)), 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  void* raw = &address;
  auto* const any = static_cast<sockaddr*>(raw);
  ASSERT_EQ(bind(fd, any, size), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  ASSERT_EQ(getsockname(fd, any, &size), 0);
  const std::string taken = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  EXPECT_EQ(ExplainBindError(taken), "Address already in use");

  // Connections that the last owner has closed linger in TIME_WAIT. They do not block the address.
  const int client = socket(AF_INET, SOCK_STREAM, 0);
  ASSERT_EQ(connect(client, any, size), 0);
  const int served = accept(fd, nullptr, nullptr);
  for (const int end : {served, client, fd}) close(end);
  EXPECT_EQ(ExplainBindError(taken), "unknown reason");
  EXPECT_NE(ExplainBindError("192.0.2.1:1"), "");  // no machine has this address
}

// A port that is a word is refused before the host is looked up, so no DNS server is asked.
TEST(BindErrorTest, SaysWhyAnAddressCannotBeResolved) {
  EXPECT_EQ(ExplainBindError("127.0.0.1:port"), gai_strerror(EAI_NONAME));
}

TEST(BindErrorTest, KnowsAddressesOfVersion6) {
  const int fd = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  socklen_t size = sizeof(address);
  void* raw = &address;
  auto* const any = static_cast<sockaddr*>(raw);
  if (fd < 0 || bind(fd, any, size) != 0) GTEST_SKIP() << "no IPv6 here";
  ASSERT_EQ(listen(fd, 1), 0);
  ASSERT_EQ(getsockname(fd, any, &size), 0);
  const std::string taken = absl::StrCat("[::1]:", ntohs(address.sin6_port));
  EXPECT_EQ(ExplainBindError(taken), "Address already in use");
  close(fd);
}

TEST(LibraryLogsTest, AreSilentUnlessTheUserAsks) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // in processes that have not used gRPC yet
  const auto logs = [] {
    QuietLibraries();
    GOOGLE_LOG(ERROR) << "from protobuf";
    grpc_init();
    exit(gpr_should_log(GPR_LOG_SEVERITY_ERROR));
  };
  EXPECT_EXIT(logs(), testing::ExitedWithCode(0), "^$");
  setenv("GRPC_VERBOSITY", "ERROR", /*overwrite=*/1);
  EXPECT_EXIT(logs(), testing::ExitedWithCode(1), "");
  unsetenv("GRPC_VERBOSITY");
}

TEST(ModelCodecTest, EveryStateAndFieldIsEncoded) {
  ModelStatus status;
  status.name = "m";
  status.version = "2";
  status.state = ModelState::kFailed;
  status.error = "why";
  status.slots = 5;
  const std::string text = "name: 'm' version: '2' error: 'why' slots: 5 ";
  ExpectText(EncodeModel(status), text + "state: MODEL_STATE_FAILED");

  status.info = ModelInfo{.architecture = "aft_local",
                          .vocab_size = 257,
                          .parameters = 3,
                          .max_seq_len = 4,
                          .state_bytes = 5,
                          .state_bytes_per_token = 7,
                          .weight_bytes = 6,
                          .weight_format = "fp32",
                          .device = "cpu"};
  const std::string info =
      "architecture: 'aft_local' vocab_size: 257 parameters: 3 max_seq_len: 4 state_bytes: 5 "
      "state_bytes_per_token: 7 weight_bytes: 6 weight_format: 'fp32' device: 'cpu' ";
  const std::pair<ModelState, const char*> states[] = {{ModelState::kLoading, "LOADING"},
                                                       {ModelState::kReady, "READY"},
                                                       {ModelState::kUnloaded, "UNLOADED"},
                                                       {ModelState::kDraining, "DRAINING"}};
  for (const auto& [state, name] : states) {
    status.state = state;
    ExpectText(EncodeModel(status),
               absl::StrCat(text, info, "load {} task: TASK_GENERATE state: MODEL_STATE_", name));
  }
  status.vector_width = 3;  // a language model encodes, too
  ExpectText(EncodeModel(status), text + info +
                                      "load {} task: TASK_GENERATE vector_width: 3 "
                                      "state: MODEL_STATE_DRAINING");
  status.encodes = true;
  const std::string end = "task: TASK_ENCODE vector_width: 3 state: MODEL_STATE_DRAINING ";
  ExpectText(EncodeModel(status), text + info + end + "load {}");

  const std::pair<EngineLoad, const char*> loads[] = {
      {{.running = 1, .waiting = 0, .slots = 4}, "requests_running: 1 utilization: 0.25"},
      {{.running = 4, .waiting = 7, .slots = 4},
       "requests_running: 4 requests_waiting: 7 utilization: 1"}};
  for (const auto& [load, expected] : loads) {
    status.load = load;
    ExpectText(EncodeModel(status), absl::StrCat(text, info, end, "load {", expected, "}"));
  }
  status.load = {};
  status.info->labels = {"ham", "spam", "unsure"};
  ExpectText(EncodeModel(status),
             absl::StrCat(text, info, "labels: ['ham', 'spam', 'unsure'] task: TASK_CLASSIFY ",
                          "vector_width: 3 state: MODEL_STATE_DRAINING load {}"));
}

}  // namespace
}  // namespace aft::server
