# What a guest does whose root is hostile: `perl guest.pl BEHAVIOUR PLACE`.
#
# PLACE: unix:PATH, tcp:PORT (all addresses) or tcp:ADDRESS:PORT, where it listens and each
# connection meets the behaviour, or port:NAME, a virtio port. It runs on the host of the tests, and
# in guests, whose images have perl but few of its modules. "ready" is printed once it can be met.
use Socket;

$SIG{PIPE} = "IGNORE";
my ($behaviour, $place) = @ARGV;

# A packet of MySQL's protocol.
sub packet {
    my ($number, $data) = @_;
    return substr(pack("V", length($data)), 0, 3) . chr($number & 255) . $data;
}

# All of the next packet, and its number; nothing if the other end is closed.
sub next_packet {
    my ($peer) = @_;
    read($peer, my $head, 4) == 4 or return;
    my $size = unpack("V", substr($head, 0, 3) . "\0");
    read($peer, my $data, $size) == $size or return;
    return ($data, ord(substr($head, 3, 1)));
}

sub say_ { my ($peer, $data) = @_; syswrite($peer, $data) or die "gone\n"; }

sub greet {
    my ($peer, $plugin) = @_;
    say_($peer, packet(0, "\x0a5.5.5-10.11.6-MariaDB\0" . pack("V", 7) . "abcdefgh\0"
        . pack("v", 0xaa08) . "\x2d" . pack("v", 2) . pack("v", 0x0008) . "\x15"
        . "\0" x 10 . "ijklmnopqrst\0" . "$plugin\0"));
}

my $OK = "\0\0\0\x02\0\0\0";
my $EOF = "\xfe\0\0\x02\0";

# Let anybody in, and answer each statement with what the function writes.
sub server {
    my ($answer) = @_;
    return sub {
        my ($peer) = @_;
        greet($peer, "mysql_native_password");
        my (undef, $number) = next_packet($peer) or return;
        say_($peer, packet($number + 1, $OK));
        while (my ($asked) = next_packet($peer)) {
            # What clients say before their first statement.
            if ($asked =~ /^\x03SET/) { say_($peer, packet(1, $OK)) }
            else { $answer->($peer) }
        }
    };
}

# The head of an answer of one column.
sub head {
    my ($peer) = @_;
    my $column = "\x03def\0\0\0\x01c\0\x0c" . pack("v", 33) . pack("V", 255) . "\xfd\0\0\0\0\0";
    say_($peer, packet(1, "\x01") . packet(2, $column) . packet(3, $EOF));
}

# Ask for the password by another plugin; what comes goes to the file that LEAK names.
sub thief {
    my ($plugin, $greets, $data) = @_;
    return sub {
        my ($peer) = @_;
        greet($peer, $greets);
        my ($login, $number) = next_packet($peer) or return;
        say_($peer, packet($number + 1, "\xfe$plugin\0$data")) if $plugin;
        my ($answer) = $plugin ? next_packet($peer) : "";
        open(my $leak, ">>", $ENV{LEAK}) or die "leak: $!\n";
        print {$leak} $login, "answer:", defined $answer ? $answer : "";
    };
}

my @WRONG = (
    '[]', '{}', '7', '"x"', 'null', '{"return": []}', '{"return": {"pid": "x"}}', '{"return": null}',
    '{"return": {"pid": true}}', '{"error": 7}', 'error zz', 'error', '{"return": ' . "[" x 9000,
    '{"return": ' . "9" x 9000 . '}', "\xff\xfe\xfd", '',
);
my $turn = 0;

my %do = (
    silent => sub { sleep 3600 },
    endless => sub { my ($peer) = @_; say_($peer, "x" x 65536) while 1 },
    flood => sub { my ($peer) = @_; say_($peer, "ok \n" x 16384) while 1 },
    drip => sub { my ($peer) = @_; while (1) { say_($peer, "x"); select(undef, undef, undef, 0.05) } },
    wrong => sub {
        my ($peer) = @_;
        while (sysread($peer, my $asked, 65536)) { say_($peer, $WRONG[$turn++ % @WRONG] . "\n") }
    },
    http => sub {
        my ($peer) = @_;
        say_($peer, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi");
    },
    "sql-rows" => server(sub {
        my ($peer) = @_;
        head($peer);
        my $number = 4;
        while (1) { say_($peer, join("", map { packet($number++, "\x05Com_x") } 1 .. 4096)) }
    }),
    "sql-large" => server(sub {    # one row that never ends
        my ($peer) = @_;
        head($peer);
        my $number = 4;
        while (1) { say_($peer, "\xff\xff\xff" . chr($number++ & 255) . "x" x 0xffffff) }
    }),
    "sql-drip" => server(sub {
        my ($peer) = @_;
        head($peer);
        my $number = 4;
        while (1) { say_($peer, packet($number++, "\x01x")); select(undef, undef, undef, 0.05) }
    }),
    "sql-file" => server(sub { my ($peer) = @_; say_($peer, packet(1, "\xfb/etc/hostname")) }),
    "sql-columns" => server(sub {
        my ($peer) = @_;
        head($peer);
        say_($peer, packet(4, "\x03NaN") . packet(5, $EOF));
    }),
    "sql-nonsense" => server(sub { my ($peer) = @_; say_($peer, packet(1, "\xfc\xff\xff" . "\xfe" x 9)) }),
    "sql-error" => server(sub {
        my ($peer) = @_;
        say_($peer, packet(1, "\xff" . pack("v", 1064) . "#42000\x1b]0;mine\x07\x1b[2J" . "x" x 9000));
    }),
    "sql-clear" => thief("mysql_clear_password", "mysql_native_password", ""),
    "sql-old" => thief("mysql_old_password", "mysql_native_password", "abcdefgh\0"),
    "sql-dialog" => thief("dialog", "mysql_native_password", "\x04Password: "),
    "sql-sha2" => thief("caching_sha2_password", "mysql_native_password", "abcdefghijklmnopqrst\0"),
    "sql-sha256" => thief("", "sha256_password", ""),
);
my $act = $do{$behaviour} or die "no behaviour $behaviour\n";

sub meet { my ($peer) = @_; binmode($peer); eval { $act->($peer); 1 } or $@ eq "gone\n" or warn $@; }

$| = 1;
my ($kind, $where) = split /:/, $place, 2;
if ($kind eq "port") {
    my $path;
    for my $directory (glob "/sys/class/virtio-ports/*") {
        open(my $file, "<", "$directory/name") or next;
        $path = "/dev/" . (split m{/}, $directory)[-1] if <$file> eq "$where\n";
    }
    defined $path or die "no port $where\n";
    print "ready\n";
    while (1) {    # the host opens and closes its end as it likes
        open(my $port, "+<", $path) or die "$path: $!\n";
        meet($port);
        select(undef, undef, undef, 0.01);
    }
}
my ($number, $host) = reverse split /:/, $where;
my $at = $host ? inet_aton($host) : $where ? INADDR_ANY : INADDR_LOOPBACK;
my $address = $kind eq "unix" ? sockaddr_un($where) : sockaddr_in($number, $at);
socket(my $door, $kind eq "unix" ? PF_UNIX : PF_INET, SOCK_STREAM, 0) or die "socket: $!\n";
setsockopt($door, SOL_SOCKET, SO_REUSEADDR, pack("l", 1)) if $kind eq "tcp";
bind($door, $address) && listen($door, 100) or die "$place: $!\n";
$SIG{CHLD} = "IGNORE";
print "ready", $kind eq "tcp" ? " " . (sockaddr_in(getsockname($door)))[0] : "", "\n";
while (1) {
    accept(my $peer, $door) or next;
    if (!fork) { meet($peer); exit }
    $turn++;    # each connection gets another wrong answer first
}
