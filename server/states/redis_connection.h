#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/config/config.h"

struct redisContext;

namespace aft::server {

struct RedisReply {
  enum class Type { kNil, kInteger, kText, kError, kArray };

  Type type = Type::kNil;
  int64_t integer = 0;
  std::string text;  // the text, or the message of kError
  std::vector<RedisReply> elements;
};

using RedisCommand = std::vector<std::string>;

// Returns the password in RedisConfig::password_file, or "" if the config names no file. Its errors
// are those of ReadConfigFile.
absl::StatusOr<std::string> ReadRedisPassword(const RedisConfig& config);

// One connection to a Redis server, which is not trusted: it may not answer in time, may send more
// than was asked for, or may not speak Redis' protocol. Thread-compatible.
class RedisConnection {
 public:
  using Deadline = std::chrono::steady_clock::time_point;
  // Returns the current time, with which deadlines are compared.
  using Clock = std::function<Deadline()>;

  // Connects, logs in with the password unless it is "", chooses the database, and waits until
  // Redis says that it serves. UNAVAILABLE names address and reason. The look-up of a host's name
  // may exceed `deadline`. REQUIRES: ValidateServerConfig has accepted the address.
  static absl::StatusOr<std::unique_ptr<RedisConnection>> Open(
      const RedisConfig& config, const std::string& password, Deadline deadline,
      Clock clock = std::chrono::steady_clock::now);
  ~RedisConnection();
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  // Returns one reply for each command, in their order. The replies together have at most
  // `max_bytes` on the wire.
  // No array has more than 1,024 elements, or is in another one. For each 10 MB that are sent or
  // received the call may take a second longer, but it waits at most RedisConfig::timeout (or until
  // `deadline`, if that is later) for the next bytes. After an error the connection must not be
  // used. UNAVAILABLE: the connection is closed; DEADLINE_EXCEEDED; DATA_LOSS: the answer is too
  // long, or not in Redis' protocol; RESOURCE_EXHAUSTED: no memory for it.
  absl::StatusOr<std::vector<RedisReply>> Call(const std::vector<RedisCommand>& commands,
                                               size_t max_bytes, Deadline deadline);

 private:
  RedisConnection(redisContext* context, std::chrono::milliseconds timeout, Clock clock);

  absl::Status Send(const std::vector<RedisCommand>& commands, Deadline& deadline);
  absl::Status SendBytes(absl::string_view bytes, Deadline& deadline) const;
  // Gives the call more time for `bytes` that were moved.
  void Extend(Deadline& deadline, size_t bytes) const;
  // Waits until there is something to read, or room to write.
  absl::Status Await(int16_t events, Deadline deadline) const;

  redisContext* const context_;  // null if there was no memory for it; then Open fails
  const std::chrono::milliseconds timeout_;
  const Clock clock_;
};

}  // namespace aft::server
