#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "server/config/config.h"
#include "server/states/redis_connection.h"
#include "tests/support/temp_files.h"
#include "tests/unit/client/process.h"

namespace aft::server {

// A real redis-server on a socket of its own. Its data survives Kill. REQUIRES: the server is
// running, except for Start.
class RedisServer {
 public:
  // Starts the server. `options` are options of the command line, e.g. {"--maxmemory", "2mb"}.
  explicit RedisServer(std::vector<std::string> options = {});

  void Start();
  void Kill();

  std::string address() const { return "unix:" + folder_.File("socket"); }
  // Sends a command on a new connection and returns the reply.
  RedisReply Do(const RedisCommand& command, const std::string& password = "") const;

 private:
  const std::vector<std::string> options_;
  const TempFolder folder_;
  std::unique_ptr<client::Process> process_;
};

// A fake server on such a socket, whose replies the test chooses.
class FakeRedis {
 public:
  // Returns the reply to a command: "" sends nothing, kHangUp closes the connection.
  using Answer = std::function<std::string(const RedisCommand&)>;
  // Is called before each read, with the number of bytes that the connection has read.
  using Pace = std::function<void(size_t)>;
  static constexpr char kHangUp[] = "hang up";

  // Unless `login` is false, PING, AUTH and SELECT get the replies of a real Redis. The object
  // calls `answer` for all other commands, on its own thread.
  explicit FakeRedis(Answer answer, bool login = true, Pace pace = {});
  ~FakeRedis();

  std::string address() const { return "unix:" + folder_.File("socket"); }
  int connections() const { return connections_; }

 private:
  void Run();
  void Serve(int connection);
  std::string AnswerTo(const RedisCommand& command);

  const Answer answer_;
  const bool login_;
  const Pace pace_;
  const TempFolder folder_;
  int listener_ = -1;
  int wake_read_ = -1;
  int wake_write_ = -1;
  std::atomic<int> connections_{0};
  std::thread thread_;
};

}  // namespace aft::server
