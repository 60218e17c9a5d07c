#pragma once

#include <atomic>
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

// A real redis-server on a socket of its own. What it holds survives Stop and Kill. REQUIRES, of
// most of it: it runs.
class RedisServer {
 public:
  // `options`: of the command line, e.g. {"--maxmemory", "2mb"}. It runs on return.
  explicit RedisServer(std::vector<std::string> options = {});

  void Start();
  void Kill();

  std::string address() const { return "unix:" + folder_.File("socket"); }
  // The reply, of a connection made for it.
  RedisReply Do(const RedisCommand& command, const std::string& password = "") const;

 private:
  const std::vector<std::string> options_;
  const TempFolder folder_;
  std::unique_ptr<client::Process> process_;
};

// Something else behind such a socket.
class FakeRedis {
 public:
  // What it sends for a command; nothing: it stays silent.
  using Answer = std::function<std::string(const RedisCommand&)>;
  static constexpr char kHangUp[] = "hang up";

  // PING and what comes before it is answered as Redis does, unless `login` is false. `answer` is
  // called on the thread of the object.
  explicit FakeRedis(Answer answer, bool login = true);
  ~FakeRedis();

  std::string address() const { return "unix:" + folder_.File("socket"); }
  int connections() const { return connections_; }

 private:
  void Run();
  void Serve(int connection);
  std::string AnswerTo(const RedisCommand& command);

  const Answer answer_;
  const bool login_;
  const TempFolder folder_;
  int listener_ = -1;
  int wake_read_ = -1;
  int wake_write_ = -1;
  std::atomic<int> connections_{0};
  std::thread thread_;
};

}  // namespace aft::server
