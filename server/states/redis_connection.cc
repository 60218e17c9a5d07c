#include "server/states/redis_connection.h"

#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/catching.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "server/config/text_proto.h"  // ReadConfigFile

namespace aft::server {
namespace {

using std::chrono::microseconds;

constexpr size_t kReadBytes = size_t{64} << 10;
// The most elements of an array. No command here asks for more.
constexpr int kMaxElements = 1024;
// The time for a byte of a long command or reply, so that large states need no larger timeout.
constexpr std::chrono::nanoseconds kByteTime{100};

// Makes a reply for hiredis: in the array that it belongs to, or on the heap. Null: refused. No
// exception may pass through hiredis.
template <typename Fill>
void* MakeReply(const redisReadTask* task, RedisReply::Type type, Fill fill) {
  try {
    RedisReply reply;
    reply.type = type;
    fill(reply);
    if (task->parent == nullptr) return std::make_unique<RedisReply>(std::move(reply)).release();
    auto& elements = static_cast<RedisReply*>(task->parent->obj)->elements;
    RedisReply& element = elements[static_cast<size_t>(task->idx)];
    element = std::move(reply);
    return &element;
  } catch (const std::exception&) {  // out of memory
    return nullptr;
  }
}

void* MakeText(const redisReadTask* task, char* text, size_t size) {
  const auto type =
      task->type == REDIS_REPLY_ERROR ? RedisReply::Type::kError : RedisReply::Type::kText;
  return MakeReply(task, type, [&](RedisReply& reply) { reply.text.assign(text, size); });
}

// Refuses arrays in arrays, which no command here asks for. An empty one takes 4 bytes on the wire,
// but many times that in memory.
void* MakeArray(const redisReadTask* task, int elements) {
  if (elements > kMaxElements || task->parent != nullptr) {
    *static_cast<bool*>(task->privdata) = true;
    return nullptr;
  }
  return MakeReply(task, RedisReply::Type::kArray, [&](RedisReply& reply) {
    reply.elements.resize(static_cast<size_t>(elements));
  });
}

void* MakeInteger(const redisReadTask* task, long long value) {  // NOLINT(google-runtime-int)
  return MakeReply(task, RedisReply::Type::kInteger,
                   [&](RedisReply& reply) { reply.integer = value; });
}

void* MakeNil(const redisReadTask* task) {
  return MakeReply(task, RedisReply::Type::kNil, [](RedisReply& /*reply*/) {});
}

void FreeReply(void* reply) { absl::WrapUnique(static_cast<RedisReply*>(reply)).reset(); }

// Null: no memory. `refused` is set when an array is refused.
std::unique_ptr<redisReader, void (*)(redisReader*)> MakeReader(bool& refused) {
  static redisReplyObjectFunctions functions = {MakeText, MakeArray, MakeInteger, MakeNil,
                                                FreeReply};
  redisReader* const reader = redisReaderCreateWithFunctions(&functions);
  if (reader != nullptr) reader->privdata = &refused;
  return {reader, redisReaderFree};
}

redisContext* Connect(absl::string_view address, microseconds timeout) {
  const timeval limit = {.tv_sec = timeout.count() / 1'000'000,
                         .tv_usec = timeout.count() % 1'000'000};
  if (absl::ConsumePrefix(&address, "unix:")) {
    return redisConnectUnixWithTimeout(std::string(address).c_str(), limit);
  }
  const size_t colon = address.rfind(':');
  absl::string_view host = address.substr(0, colon);
  if (absl::ConsumePrefix(&host, "[")) absl::ConsumeSuffix(&host, "]");
  int port = 0;
  // The loader of the config refuses any other address.
  AFT_CHECK(absl::SimpleAtoi(address.substr(colon + 1), &port));
  return redisConnectWithTimeout(std::string(host).c_str(), port, limit);
}

absl::Status Closed(int error) {
  return absl::UnavailableError(
      absl::StrCat("the connection is closed: ",
                   error == 0 ? "by Redis" : std::generic_category().message(error)));
}

}  // namespace

absl::StatusOr<std::string> ReadRedisPassword(const RedisConfig& config) {
  if (config.password_file.empty()) return "";
  AFT_ASSIGN_OR_RETURN(std::string password, ReadConfigFile(config.password_file));
  if (absl::EndsWith(password, "\n")) password.pop_back();
  if (absl::EndsWith(password, "\r")) password.pop_back();
  return password;
}

RedisConnection::RedisConnection(redisContext* context, std::chrono::milliseconds timeout,
                                 Clock clock)
    : context_(context), timeout_(timeout), clock_(std::move(clock)) {}

RedisConnection::~RedisConnection() { redisFree(context_); }

absl::StatusOr<std::unique_ptr<RedisConnection>> RedisConnection::Open(const RedisConfig& config,
                                                                       const std::string& password,
                                                                       Deadline deadline,
                                                                       Clock clock) {
  const auto failed = [&config](absl::string_view why) {
    return absl::UnavailableError(absl::StrCat("states.redis: ", config.address, ": ", why));
  };
  const auto left = std::chrono::duration_cast<microseconds>(deadline - clock());
  auto connection = absl::WrapUnique(new RedisConnection(
      Connect(config.address, std::max(left, microseconds(1))), config.timeout, std::move(clock)));
  const redisContext* const context = connection->context_;
  if (context == nullptr) return failed("no memory");
  if (context->err != 0) return failed(context->errstr);
  const int flags = fcntl(context->fd, F_GETFL);
  if (flags < 0 || fcntl(context->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return failed(std::generic_category().message(errno));
  }
  std::vector<RedisCommand> commands;
  if (!password.empty()) commands.push_back({"AUTH", password});
  if (config.database != 0) commands.push_back({"SELECT", absl::StrCat(config.database)});
  commands.push_back({"PING"});
  const auto replies = connection->Call(commands, kReadBytes, deadline);
  if (!replies.ok()) return failed(replies.status().message());
  for (const RedisReply& reply : *replies) {
    if (reply.type != RedisReply::Type::kText) return failed(reply.text.substr(0, 200));
  }
  return connection;
}

absl::StatusOr<std::vector<RedisReply>> RedisConnection::Call(
    const std::vector<RedisCommand>& commands, size_t max_bytes, Deadline deadline) {
  // Each call has a reader of its own, because a reader keeps the memory of a long reply until the
  // next reply, and no budget counts that memory.
  bool refused = false;  // hiredis reports a refused array as out of memory
  const auto reader = MakeReader(refused);
  if (reader == nullptr) return OutOfMemory();
  AFT_RETURN_IF_ERROR(Send(commands, deadline));
  std::vector<RedisReply> replies;
  std::array<char, kReadBytes> bytes;
  size_t read = 0;
  while (true) {
    void* reply = nullptr;
    if (redisReaderGetReply(reader.get(), &reply) != REDIS_OK) {
      if (reader->err == REDIS_ERR_OOM && !refused) return OutOfMemory();
      return absl::DataLossError(absl::StrCat("not an answer of Redis: ", reader->errstr));
    }
    if (reply != nullptr) {
      replies.push_back(std::move(*absl::WrapUnique(static_cast<RedisReply*>(reply))));
      if (replies.size() < commands.size()) continue;
      if (reader->pos == reader->len) return replies;
      return absl::DataLossError("not an answer of Redis: there are bytes after its end");
    }
    AFT_RETURN_IF_ERROR(Await(POLLIN, deadline));
    const ssize_t got = recv(context_->fd, bytes.data(), bytes.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (got <= 0) return Closed(got < 0 ? errno : 0);
    Extend(deadline, static_cast<size_t>(got));
    read += static_cast<size_t>(got);
    if (read > max_bytes) {
      return absl::DataLossError(absl::StrCat("an answer of more than ", max_bytes, " bytes"));
    }
    redisReaderFeed(reader.get(), bytes.data(), static_cast<size_t>(got));  // it keeps errors
  }
}

absl::Status RedisConnection::Send(const std::vector<RedisCommand>& commands, Deadline& deadline) {
  std::string bytes;  // collects small parts; a large one is not copied: there is no room for that
  for (const RedisCommand& command : commands) {
    absl::StrAppend(&bytes, "*", command.size(), "\r\n");
    for (const std::string& part : command) {
      absl::StrAppend(&bytes, "$", part.size(), "\r\n");
      if (part.size() > kReadBytes) {
        AFT_RETURN_IF_ERROR(SendBytes(bytes, deadline));
        AFT_RETURN_IF_ERROR(SendBytes(part, deadline));
        bytes.clear();
      } else {
        bytes += part;
      }
      bytes += "\r\n";
    }
  }
  return SendBytes(bytes, deadline);
}

absl::Status RedisConnection::SendBytes(absl::string_view bytes, Deadline& deadline) const {
  while (!bytes.empty()) {
    AFT_RETURN_IF_ERROR(Await(POLLOUT, deadline));
    const ssize_t sent = send(context_->fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return Closed(errno);
    const auto moved = static_cast<size_t>(std::max<ssize_t>(sent, 0));
    bytes.remove_prefix(moved);
    Extend(deadline, moved);
  }
  return absl::OkStatus();
}

void RedisConnection::Extend(Deadline& deadline, size_t bytes) const {
  const Deadline later = deadline + kByteTime * static_cast<int64_t>(bytes);
  deadline = std::max(deadline, std::min(later, clock_() + timeout_));
}

absl::Status RedisConnection::Await(int16_t events, Deadline deadline) const {
  pollfd file = {.fd = context_->fd, .events = events, .revents = 0};
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock_());
    if (left.count() <= 0) return absl::DeadlineExceededError("no answer in time");
    const int ready = poll(&file, 1, static_cast<int>(left.count()));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return Closed(errno);
  }
}

}  // namespace aft::server
