#include "tests/support/redis_server.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "base/check.h"

namespace aft::server {
namespace {

constexpr char kLoggedIn[] = "+OK\r\n";

// Takes the number after `mark`, up to its line break. -1: the line is not complete.
int64_t TakeNumber(char mark, absl::string_view& bytes) {
  const size_t end = bytes.find("\r\n");
  if (end == absl::string_view::npos) return -1;
  int64_t number = 0;
  AFT_CHECK(bytes[0] == mark && absl::SimpleAtoi(bytes.substr(1, end - 1), &number));
  bytes.remove_prefix(end + 2);
  return number;
}

// Takes the first command. False when it is not complete.
bool TakeCommand(std::string& bytes, RedisCommand& command) {
  absl::string_view rest = bytes;
  command.clear();
  const int64_t parts = TakeNumber('*', rest);
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t size = TakeNumber('$', rest);
    if (size < 0 || static_cast<int64_t>(rest.size()) < size + 2) return false;
    command.emplace_back(rest.substr(0, static_cast<size_t>(size)));
    rest.remove_prefix(static_cast<size_t>(size) + 2);
  }
  if (parts < 0) return false;
  bytes.erase(0, bytes.size() - rest.size());
  return true;
}

}  // namespace

// Debian's package redis-server would start a service. The program itself is in redis-tools under
// another name; under the name redis-server it is the server.
RedisServer::RedisServer(std::vector<std::string> options) : options_(std::move(options)) {
  std::filesystem::create_symlink("/usr/bin/redis-check-rdb", folder_.File("redis-server"));
  Start();
}

void RedisServer::Start() {
  std::vector<std::string> command = {folder_.File("redis-server"),
                                      "--port",
                                      "0",
                                      "--unixsocket",
                                      folder_.File("socket"),
                                      "--dir",
                                      folder_.path(),
                                      "--save",
                                      "",
                                      "--appendonly",
                                      "yes",
                                      "--appendfsync",
                                      "always",
                                      "--daemonize",
                                      "no"};
  command.insert(command.end(), options_.begin(), options_.end());
  process_ = std::make_unique<client::Process>(command);
  const bool ready = process_->WaitForOutput("The server is now ready to accept connections at");
  EXPECT_TRUE(ready) << process_->out() << process_->err();
}

void RedisServer::Kill() {
  process_->Signal(SIGKILL);
  process_->Wait();
}

RedisReply RedisServer::Do(const RedisCommand& command, const std::string& password) const {
  RedisConfig config;
  config.address = address();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  auto connection = RedisConnection::Open(config, password, deadline);
  AFT_CHECK(connection.ok());
  auto replies = (*connection)->Call({command}, size_t{1} << 30, deadline);
  AFT_CHECK(replies.ok());
  return replies->front();
}

FakeRedis::FakeRedis(Answer answer, bool login, Pace pace)
    : answer_(std::move(answer)), login_(login), pace_(std::move(pace)) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string path = folder_.File("socket");
  AFT_CHECK(path.size() < sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.c_str(), path.size());
  listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  AFT_CHECK(listener_ >= 0 &&
            bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
            listen(listener_, 16) == 0);
  std::array<int, 2> wake;
  AFT_CHECK(pipe2(wake.data(), O_CLOEXEC) == 0);
  wake_read_ = wake[0];
  wake_write_ = wake[1];
  thread_ = std::thread([this] { Run(); });
}

FakeRedis::~FakeRedis() {
  close(wake_write_);
  thread_.join();
  close(wake_read_);
  close(listener_);
}

void FakeRedis::Run() {
  while (true) {
    std::array<pollfd, 2> files = {{{listener_, POLLIN, 0}, {wake_read_, POLLIN, 0}}};
    AFT_CHECK(poll(files.data(), files.size(), -1) > 0);
    if (files[1].revents != 0) return;
    const int connection = accept(listener_, nullptr, nullptr);
    AFT_CHECK(connection >= 0);
    ++connections_;
    Serve(connection);
    close(connection);
  }
}

void FakeRedis::Serve(int connection) {
  std::string bytes;
  RedisCommand command;
  size_t read = 0;
  while (true) {
    std::array<pollfd, 2> files = {{{connection, POLLIN, 0}, {wake_read_, POLLIN, 0}}};
    AFT_CHECK(poll(files.data(), files.size(), -1) > 0);
    if (files[1].revents != 0) return;
    if (pace_) pace_(read);
    std::array<char, 4096> buffer;
    const ssize_t got = recv(connection, buffer.data(), buffer.size(), 0);
    if (got <= 0) return;
    read += static_cast<size_t>(got);
    bytes.append(buffer.data(), static_cast<size_t>(got));
    while (TakeCommand(bytes, command)) {
      const std::string answer = AnswerTo(command);
      if (answer == kHangUp) return;
      for (size_t sent = 0; sent < answer.size();) {
        const ssize_t more =
            send(connection, answer.data() + sent, answer.size() - sent, MSG_NOSIGNAL);
        if (more <= 0) return;
        sent += static_cast<size_t>(more);
      }
    }
  }
}

std::string FakeRedis::AnswerTo(const RedisCommand& command) {
  if (login_ && command[0] == "PING") return "+PONG\r\n";
  if (login_ && (command[0] == "AUTH" || command[0] == "SELECT")) return kLoggedIn;
  return answer_(command);
}

}  // namespace aft::server
