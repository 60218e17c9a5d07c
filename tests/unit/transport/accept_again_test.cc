#include "server/transport/accept_again.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "gtest/gtest.h"
#include "tests/support/no_more_files.h"
#include "tests/support/tcp.h"

namespace aft::server {
namespace {

// A listener whose events are reported as gRPC's are.
class AcceptAgainTest : public testing::Test {
 protected:
  AcceptAgainTest() {
    EXPECT_EQ(listen(listener_, 1), 0);
    epoll_event event = {};
    event.events = EPOLLIN | EPOLLOUT | EPOLLET;
    EXPECT_EQ(epoll_ctl(epoll_, EPOLL_CTL_ADD, listener_, &event), 0);
  }
  ~AcceptAgainTest() override { close(epoll_); }

  // Returns the number of events, and waits for one for at most `timeout_ms`; -1: for as long as it
  // takes.
  int Events(int timeout_ms) const {
    epoll_event event = {};
    return epoll_wait(epoll_, &event, 1, timeout_ms);
  }

  const BoundPort port_{SOCK_NONBLOCK};
  const int listener_ = port_.fd();
  const int epoll_ = epoll_create1(0);
};

TEST_F(AcceptAgainTest, AConnectionWithoutADescriptorIsReportedAgain) {
  const TcpConnection first(port_.address());
  ASSERT_EQ(Events(-1), 1);
  {
    const NoMoreFiles none;
    EXPECT_EQ(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC), -1);
    EXPECT_EQ(errno, EAGAIN);
  }
  EXPECT_EQ(Events(0), 0);
  EXPECT_EQ(AcceptAgain(), EMFILE);
  EXPECT_EQ(Events(-1), 1);
  EXPECT_EQ(AcceptAgain(), 0);
  EXPECT_EQ(Events(0), 0);
  const int accepted = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
  EXPECT_GE(accepted, 0);
  close(accepted);
}

TEST_F(AcceptAgainTest, OtherErrorsAreLeftToTheCaller) {
  EXPECT_EQ(accept4(-1, nullptr, nullptr, 0), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(accept4(epoll_, nullptr, nullptr, 0), -1);
  EXPECT_EQ(errno, ENOTSOCK);
  EXPECT_EQ(accept4(listener_, nullptr, nullptr, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(AcceptAgain(), 0);
}

}  // namespace
}  // namespace aft::server
