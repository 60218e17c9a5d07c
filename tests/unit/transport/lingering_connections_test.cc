#include "server/transport/lingering_connections.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "gtest/gtest.h"
#include "tests/support/tcp.h"

namespace aft::server {
namespace {

struct Listener {
  Listener() { EXPECT_EQ(listen(listener_, 1), 0); }

  const BoundPort bound_;
  const int listener_ = bound_.fd();
  const int port_ = bound_.port();
};

// A connection whose client has sent bytes that the server has not read, and reads nothing yet.
struct FilledConnection {
  explicit FilledConnection(int listener) {
    const int small = 4096;
    EXPECT_EQ(setsockopt(client_, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
    sockaddr_in address = {};
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(getsockname(listener, any, &size), 0);
    EXPECT_EQ(connect(client_, any, size), 0);
    server_ = accept(listener, nullptr, nullptr);
    EXPECT_EQ(write(client_, "ping", 4), 4);
    // Sends more than can arrive before the client reads.
    const std::string answer(64 << 10, 'x');
    for (ssize_t sent = 0; sent >= 0;) {
      sent = send(server_, answer.data(), answer.size(), MSG_DONTWAIT);
      if (sent > 0) sent_ += sent;
    }
  }
  ~FilledConnection() { CloseClient(); }
  FilledConnection(const FilledConnection&) = delete;
  FilledConnection& operator=(const FilledConnection&) = delete;

  void CloseClient() {
    if (client_ >= 0) close(client_);
    client_ = -1;
  }

  // Closes the connection as gRPC does.
  void CloseServer() const {
    shutdown(server_, SHUT_RDWR);
    close(server_);
  }

  // The number of bytes that the client gets. `end` is 0, or the error that ended the connection.
  int64_t ReadAll(int* end) const {
    int64_t got = 0;
    char buffer[4096];
    while (true) {
      const ssize_t bytes = read(client_, buffer, sizeof(buffer));
      if (bytes <= 0) {
        *end = bytes == 0 ? 0 : errno;
        return got;
      }
      got += bytes;
    }
  }

  int client_ = socket(AF_INET, SOCK_STREAM, 0);
  int server_ = -1;
  int64_t sent_ = 0;
};

class LingeringConnectionsTest : public testing::Test,
                                 protected Listener,
                                 protected FilledConnection {
 protected:
  LingeringConnectionsTest() : FilledConnection(listener_) {}
};

TEST_F(LingeringConnectionsTest, WithoutLingeringTheClientLosesBytesThatItHasNotRead) {
  CloseServer();
  int end = 0;
  EXPECT_LT(ReadAll(&end), sent_);
  EXPECT_EQ(end, ECONNRESET);
}

TEST_F(LingeringConnectionsTest, TheClientReadsEverythingUpToTheEnd) {
  LingeringConnections connections;
  connections.Keep(port_);
  CloseServer();
  std::thread release([&] { connections.Release(TimePoint::min(), TimePoint::max()); });
  int end = -1;
  EXPECT_EQ(ReadAll(&end), sent_);
  EXPECT_EQ(end, 0);
  release.join();
}

TEST_F(LingeringConnectionsTest, AClientThatKeepsSendingReadsEverythingToo) {
  LingeringConnections connections;
  connections.Keep(port_);
  CloseServer();
  EXPECT_EQ(write(client_, "late", 4), 4);
  std::thread release([&] { connections.Release(TimePoint::max(), TimePoint::max()); });
  int end = -1;
  EXPECT_EQ(ReadAll(&end), sent_);
  EXPECT_EQ(end, 0);
  EXPECT_EQ(write(client_, "last", 4), 4);
  CloseClient();
  release.join();
}

TEST_F(LingeringConnectionsTest, AClientThatReadsAndDoesNotCloseIsReleasedAfterItsTime) {
  LingeringConnections connections;
  connections.Keep(port_);
  CloseServer();
  int end = -1;
  EXPECT_EQ(ReadAll(&end), sent_);
  connections.Release(std::chrono::steady_clock::now(), TimePoint::max());
}

TEST_F(LingeringConnectionsTest, AClientThatDoesNotReadIsReleasedAtTheDeadline) {
  LingeringConnections connections;
  connections.Keep(port_);
  CloseServer();
  connections.Release(TimePoint::min(), std::chrono::steady_clock::now());
  int end = 0;
  EXPECT_LT(ReadAll(&end), sent_);
  EXPECT_EQ(end, ECONNRESET);
}

TEST_F(LingeringConnectionsTest, AClientThatHasGoneIsNotWaitedFor) {
  LingeringConnections connections;
  connections.Keep(port_);
  CloseClient();
  CloseServer();
  connections.Release(TimePoint::max(), TimePoint::max());
}

TEST_F(LingeringConnectionsTest, KeepsConnectionsOfItsPortAlone) {
  LingeringConnections connections;
  connections.Keep(port_ == 1 ? 2 : 1);
  CloseServer();
  int end = 0;
  ReadAll(&end);
  EXPECT_EQ(end, ECONNRESET);
}

TEST_F(LingeringConnectionsTest, BeyondTheLimitTheOldestConnectionIsReleased) {
  LingeringConnections none(0);
  none.Keep(port_);
  CloseServer();
  EXPECT_EQ(none.kept(), 0U);
  int end = 0;
  EXPECT_LT(ReadAll(&end), sent_);
  EXPECT_EQ(end, ECONNRESET);
}

TEST_F(LingeringConnectionsTest, TheNewerOfTwoConnectionsIsKept) {
  const FilledConnection newer(listener_);
  LingeringConnections one(1);
  one.Keep(port_);
  CloseServer();
  newer.CloseServer();
  EXPECT_EQ(one.kept(), 1U);
  int end = -1;
  EXPECT_EQ(newer.ReadAll(&end), newer.sent_);
  EXPECT_EQ(end, 0);
  EXPECT_LT(ReadAll(&end), sent_);
  EXPECT_EQ(end, ECONNRESET);
}

TEST_F(LingeringConnectionsTest, AConnectionThatItsClientHasClosedIsReleasedByItself) {
  LingeringConnections connections;
  connections.Keep(port_);
  CloseServer();
  EXPECT_EQ(connections.kept(), 1U);
  CloseClient();
  while (connections.kept() > 0) std::this_thread::yield();
}

TEST_F(LingeringConnectionsTest, KeepsNothingAfterItsDestruction) {
  LingeringConnections().Keep(port_);
  CloseServer();
  int end = 0;
  ReadAll(&end);
  EXPECT_EQ(end, ECONNRESET);
}

}  // namespace
}  // namespace aft::server
