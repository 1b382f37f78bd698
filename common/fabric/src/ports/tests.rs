//! Every rule of the choice on recorded machines. None of these machines was here:
//! they are written down from what the kernel's sources and reports of users show
//! of such ones. What Soft-RoCE shows is read by guest tests.

mod record;

use super::*;
use tempfile::TempDir;

fn machine(record: &str) -> Machine {
    Machine::read(unfold(record).path())
}

fn unfold(record: &str) -> TempDir {
    let root = tempfile::tempdir().expect("folder");
    record::unfold(record, root.path());
    root
}

macro_rules! recorded {
    ($name:literal) => {
        machine(include_str!(concat!("machines/", $name, ".txt")))
    };
}

fn towards(local: &str) -> Wish {
    Wish { local: Some(local.parse().expect("an address")), ..Wish::default() }
}

fn hinted(variables: &[(&str, &str)]) -> Wish {
    let owned = variables.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    Wish { hints: Hints::of(owned), ..Wish::default() }
}

#[track_caller]
fn best(machine: &Machine, wish: &Wish) -> Place {
    choose(machine, wish).expect("chosen").swap_remove(0)
}

/// Device, port and index of every place, the best first.
#[track_caller]
fn all(machine: &Machine, wish: &Wish) -> Vec<(String, u8, u8)> {
    let places = choose(machine, wish).expect("chosen");
    places.into_iter().map(|it| (it.device, it.port, it.gid.index)).collect()
}

#[track_caller]
fn names(machine: &Machine, wish: &Wish) -> Vec<String> {
    all(machine, wish).into_iter().map(|(device, ..)| device).collect()
}

#[track_caller]
fn refusal(machine: &Machine, wish: &Wish) -> Vec<(String, String)> {
    let reasons = choose(machine, wish).expect_err("refused");
    reasons.iter().map(|reason| (reason.to_string(), reason.hint())).collect()
}

#[test]
fn an_outline_has_the_ports_of_a_machine_and_not_their_addresses() {
    let root = unfold(include_str!("machines/roce-v1-and-v2.txt"));
    let ports = |machine: Machine| {
        let of_device = |it: DeviceInfo| {
            let ports = it.ports.into_iter().map(|port| {
                (port.number, port.state, port.link_layer.name(), port.rate_mbit, port.lid)
            });
            (it.name, ports.collect::<Vec<_>>())
        };
        machine.devices.into_iter().map(of_device).collect::<Vec<_>>()
    };
    let (whole, outline) = (Machine::read(root.path()), Machine::outline(root.path()));
    let gids =
        |it: &Machine| it.devices.iter().flat_map(|it| &it.ports).flat_map(|it| &it.gids).count();
    assert!(gids(&whole) > 0 && gids(&outline) == 0, "{outline:?}");
    assert_eq!(ports(outline), ports(whole));
}

#[test]
fn the_cabled_port_and_its_only_routed_address_are_found() {
    let machine = recorded!("connectx3-port-2");
    let place = best(&machine, &Wish::default());
    assert_eq!((place.device.as_str(), place.port, place.gid.index), ("mlx4_0", 2, 2));
    assert_eq!((place.netdev.as_deref(), place.rate_mbit), (Some("eth3"), 40_000));
    assert_eq!(place.numa_node, Some(0));
    assert_eq!(place.why, "it is the only port that can be used");
    let (text, hint) = refusal(&machine, &Wish { port: Some(1), ..Wish::default() }).remove(0);
    assert_eq!(text, "port mlx4_0/1 is DOWN");
    assert_eq!(hint, "ip link set eth2 up, and check its cable");
}

#[test]
fn a_pod_uses_what_its_scheduler_gave_it() {
    let machine = recorded!("sriov-pod");
    let best_of_all = best(&machine, &Wish::default()).device;
    assert_eq!(best_of_all, "mlx5_12", "who knows no more takes the nearest");
    let wish = hinted(&[
        ("PCIDEVICE_NVIDIA_COM_RAILS_A", "0000:1a:00.2,0000:3c:00.2,0000:4d:00.2,0000:5e:00.2"),
        ("PCIDEVICE_NVIDIA_COM_RAILS_B", "0000:9c:00.2,0000:bc:00.2,0000:cc:00.2,0000:dc:00.2"),
        ("PCIDEVICE_NVIDIA_COM_RAILS_A_INFO", "{\"0000:1a:00.2\":{\"generic\":{}}}"),
    ]);
    let rails: Vec<_> =
        (12..16).chain(8..12).map(|number| (format!("mlx5_{number}"), 1, 3)).collect();
    assert_eq!(all(&machine, &wish), rails, "all eight, and none of the host's");
    let places = choose(&machine, &wish).expect("chosen");
    assert_eq!(places[0].why, "PCIDEVICE_NVIDIA_COM_RAILS_B names it");
    let near: Vec<_> = places.iter().map(|place| (place.rate_mbit, place.numa_node)).collect();
    assert_eq!(near[..4], [(400_000, Some(1)); 4], "those of its own socket first");
    assert_eq!(near[4..], [(400_000, Some(0)); 4]);
    let far: Vec<_> = places.iter().filter_map(|place| place.numa_distance).collect();
    assert_eq!(far, [10, 10, 10, 10, 21, 21, 21, 21]);
    // Of those it was given, the one on the way to the peer comes first.
    let wish = Wish { local: towards("172.16.5.5").local, ..wish };
    let first = best(&machine, &wish);
    assert_eq!((first.device.as_str(), names(&machine, &wish).len()), ("mlx5_13", 8));
    assert_eq!(first.why, "its address routes to the peer");
}

#[test]
fn of_ports_alike_the_nearest_to_our_memory_comes_first() {
    let record = include_str!("machines/split-sockets.txt");
    let far = |record: &str| -> Vec<(String, Option<u32>)> {
        let places = choose(&machine(record), &Wish::default()).expect("chosen");
        places.into_iter().map(|place| (place.device, place.numa_distance)).collect()
    };
    let names =
        |[a, b, c]: [(&str, Option<u32>); 3]| [a, b, c].map(|(it, far)| (it.to_owned(), far));
    // A node that is not online has no column: 12 is from node 3 to node 2, not to node 1.
    let bound = [("mlx5_2", Some(10)), ("mlx5_1", Some(12)), ("mlx5_0", Some(32))];
    assert_eq!(far(record), names(bound));
    // Bound to processors alone, it gets the memory beside them.
    let pinned = record.replace("0-63\\nMems_allowed_list: 3", "0-3\\nMems_allowed_list: 0,2-3");
    let near = [("mlx5_0", Some(10)), ("mlx5_1", Some(32)), ("mlx5_2", Some(32))];
    assert_eq!(far(&pinned), names(near));
    // Bound to nothing, it is the mean of all.
    let free = record.replace("Mems_allowed_list: 3", "Mems_allowed_list: 0,2-3");
    let mean = [("mlx5_1", Some(18)), ("mlx5_2", Some(18)), ("mlx5_0", Some(24))];
    assert_eq!(far(&free), names(mean));
    // A kernel that tells nothing of its nodes.
    let silent = record.replace("online =", "offline =");
    let none = [("mlx5_0", None), ("mlx5_1", None), ("mlx5_2", None)];
    assert_eq!(far(&silent), names(none));
    // A faster port is worth more than a near one.
    let fast = record.replacen("rate = 200", "rate = 400", 1);
    assert_eq!(far(&fast)[0].0, "mlx5_0");
}

#[test]
fn a_device_that_a_container_was_not_given_is_left_out() {
    let machine = recorded!("container");
    assert_eq!(names(&machine, &Wish::default()), ["mlx5_1"]);
    let (text, hint) =
        refusal(&machine, &Wish { device: Some("mlx5_0".into()), ..Wish::default() }).remove(0);
    assert_eq!(text, "cannot use mlx5_0: /dev/infiniband/uverbs0 is not there");
    assert!(hint.contains("give the container"), "{hint}");
    // Older udev keeps it elsewhere, and the library finds it there.
    let text = include_str!("machines/container.txt");
    let elsewhere = format!("dev/char/231:192 =\n{text}");
    assert_eq!(names(&self::machine(&elsewhere), &Wish::default()), ["mlx5_0", "mlx5_1"]);
}

#[test]
fn a_device_that_may_not_be_opened_is_said_to_be() {
    let mut machine = recorded!("container");
    machine.devices[1].access = Access::Denied("/dev/infiniband/uverbs1".into());
    let reasons = refusal(&machine, &Wish::default());
    assert!(reasons[1].0.contains("uverbs1 may not be opened by this user"), "{reasons:?}");
    // Who opened it while it could goes on with it.
    let machine = machine.with_open(&["mlx5_1".into(), "mlx5_9".into()]);
    assert_eq!(names(&machine, &Wish::default()), ["mlx5_1"]);
}

#[test]
fn version_two_over_ipv4_is_preferred_then_the_faster() {
    let machine = recorded!("roce-v1-and-v2");
    let expected = [("mlx5_1".to_owned(), 1, 3), ("mlx5_0".to_owned(), 1, 3)];
    assert_eq!(all(&machine, &Wish::default()), expected);
    assert_eq!(best(&machine, &Wish::default()).why, "the best of 2 ports: RoCE v2, 100 Gb/s");
}

#[test]
fn the_address_that_routes_to_the_peer_comes_first() {
    let machine = recorded!("roce-v1-and-v2");
    let place = best(&machine, &towards("10.0.0.1"));
    assert_eq!((place.device.as_str(), place.gid.index), ("mlx5_0", 3), "though it is slower");
    assert_eq!(place.why, "its address routes to the peer");
    assert_eq!(best(&machine, &towards("::ffff:10.0.0.1")).device, "mlx5_0", "a dual socket's");
    let place = best(&machine, &towards("2001:db8::1"));
    assert_eq!((place.device.as_str(), place.gid.index), ("mlx5_1", 7), "also when it is IPv6");
    assert_eq!(best(&machine, &towards("127.0.0.1")).device, "mlx5_1", "none does");
    assert_eq!(names(&machine, &towards("10.0.0.1")), ["mlx5_0", "mlx5_1"], "the other is next");
}

#[test]
fn hints_for_nccl_narrow_the_choice_and_never_empty_it() {
    let machine = recorded!("roce-v1-and-v2");
    let hca = |list: &str| hinted(&[("NCCL_IB_HCA", list)]);
    for list in ["=mlx5_0", "mlx5_0:1", "^mlx5_1", "^=mlx5_1:1"] {
        assert_eq!(names(&machine, &hca(list)), ["mlx5_0"], "{list}");
    }
    assert_eq!(best(&machine, &hca("=mlx5_0")).why, "NCCL_IB_HCA names it");
    for list in ["mlx4", "^mlx5", "mlx5_0:2"] {
        assert_eq!(names(&machine, &hca(list)), ["mlx5_1", "mlx5_0"], "{list} means none of them");
    }
    let wish = Wish { local: towards("10.1.0.1").local, ..hca("=mlx5_0") };
    assert_eq!(names(&machine, &wish), ["mlx5_1", "mlx5_0"], "what routes is used all the same");
    let wish = Wish { device: Some("mlx5_1".into()), ..hca("=mlx5_0") };
    assert_eq!(names(&machine, &wish), ["mlx5_1"], "what the user names wins");
    // Both: what the scheduler gave says more.
    let both = hinted(&[("NCCL_IB_HCA", "mlx5_0"), ("PCIDEVICE_X", "0000:d8:00.0")]);
    assert_eq!(names(&machine, &both), ["mlx5_1"]);
}

#[test]
fn an_index_for_nccl_is_used_where_there_is_such_an_address() {
    let machine = recorded!("roce-v1-and-v2");
    let index = |value: &str| hinted(&[("NCCL_IB_GID_INDEX", value)]);
    let place = best(&machine, &index("7"));
    assert_eq!((place.device.as_str(), place.gid.index), ("mlx5_1", 7));
    assert!(place.why.ends_with("the address is that of NCCL_IB_GID_INDEX"), "{}", place.why);
    assert_eq!(best(&machine, &index("9")).gid.index, 3, "there is none");
    let wish = Wish { local: towards("10.1.0.1").local, ..index("1") };
    assert_eq!(best(&machine, &wish).gid.index, 3, "what routes is used all the same");
    let wish = Wish { gid_index: Some(2), ..index("1") };
    assert_eq!(best(&machine, &wish).gid.index, 2, "what the user names wins");
}

#[test]
fn holes_in_a_table_are_skipped_and_far_places_left_alone() {
    let machine = recorded!("sparse");
    let found: Vec<_> = machine.devices[0].ports[0].gids.iter().map(|gid| gid.index).collect();
    assert_eq!(found, [5, 17, 200]);
    let place = best(&machine, &Wish::default());
    assert_eq!((place.gid.index, place.netdev.as_deref()), (200, Some("eth0")));
    let place = best(&machine, &towards("2001:db8::5"));
    assert_eq!((place.gid.index, place.netdev.as_deref()), (5, Some("eth0.5")));
    let (text, _) = refusal(&machine, &Wish { gid_index: Some(6), ..Wish::default() }).remove(0);
    assert_eq!(
        text,
        "port mlx5_0/1 has no address 6; it has 5 (2001:db8::5, RoCE v2), 17 (10.0.0.1, RoCE v1), \
         200 (10.0.0.1, RoCE v2)"
    );
}

#[test]
fn a_port_that_is_down_is_named_with_what_brings_it_up() {
    let expected = ("port rxe0/1 is DOWN", "ip link set eth0 up, and check its cable");
    let told = refusal(&recorded!("port-down"), &Wish::default()).remove(0);
    assert_eq!((told.0.as_str(), told.1.as_str()), expected);
}

#[test]
fn link_local_is_better_than_nothing_and_said_to_be_all_there_is() {
    let place = best(&recorded!("link-local"), &Wish::default());
    assert_eq!((place.gid.index, place.gid.kind), (1, GidKind::RoceV2));
    assert!(place.why.contains("link-local addresses only"), "{}", place.why);
}

#[test]
fn a_bond_is_one_device_with_the_addresses_of_the_bond() {
    let machine = recorded!("bonded");
    let place = best(&machine, &towards("10.20.0.1"));
    assert_eq!((place.device.as_str(), place.gid.index), ("mlx5_bond_0", 3));
    assert_eq!(place.netdev.as_deref(), Some("bond0"));
    assert_eq!(best(&machine, &Wish::default()).device, "mlx5_2", "the faster");
}

#[test]
fn an_infiniband_port_is_found_by_the_network_on_it() {
    let machine = recorded!("infiniband");
    let place = best(&machine, &Wish::default());
    assert_eq!(
        (place.device.as_str(), place.gid.index, place.gid.kind),
        ("mlx5_0", 0, GidKind::Ib)
    );
    assert_eq!(place.link_layer, LinkLayer::Infiniband);
    assert_eq!(machine.devices[0].ports[0].lid, 17);
    let found: Vec<_> = machine.devices[0].ports[0].gids.iter().map(|gid| gid.index).collect();
    assert_eq!(found, [0], "what has only the subnet of the port is an empty place");
    let place = best(&machine, &towards("10.10.1.7"));
    assert_eq!((place.device.as_str(), place.netdev.as_deref()), ("mlx5_1", Some("ib1")));
    assert_eq!(place.why, "its address routes to the peer");
    assert!(!place.why.contains("link-local"), "that means nothing on InfiniBand");
    let mut down = machine;
    down.devices.truncate(1);
    down.devices[0].ports[0].state = PortState(2);
    let (text, hint) = refusal(&down, &Wish::default()).remove(0);
    assert_eq!(text, "port mlx5_0/1 is INIT");
    assert!(hint.contains("subnet manager"), "{hint}");
}

#[test]
fn devices_that_speak_otherwise_are_the_reason_for_tcp() {
    let (text, hint) = refusal(&recorded!("iwarp"), &Wish::default()).remove(0);
    assert_eq!(text, "cxgb4_0 speaks iWARP, which needs the connection manager");
    assert!(hint.contains("TCP is used"), "{hint}");
    let (text, _) = refusal(&recorded!("efa"), &Wish::default()).remove(0);
    assert_eq!(text, "rdmap16s27 has no reliable connections (EFA, usNIC)");
    assert_eq!(choose(&machine(""), &Wish::default()), Err(vec![Reason::NoDevice]));
}

#[test]
fn what_the_user_names_is_used_or_refused() {
    let machine = recorded!("roce-v1-and-v2");
    let wish = Wish {
        device: Some("mlx5_0".into()),
        port: Some(1),
        gid_index: Some(0),
        ..towards("10.1.0.1")
    };
    let place = best(&machine, &wish);
    assert_eq!((place.device.as_str(), place.port, place.gid.index), ("mlx5_0", 1, 0));
    assert!(place.why.starts_with("asked for by device, port, address"), "{}", place.why);
    let none = |wish: Wish| refusal(&machine, &wish).remove(0).0;
    let text = none(Wish { device: Some("mlx4_0".into()), ..Wish::default() });
    assert_eq!(text, "there is no RDMA device mlx4_0; there are: mlx5_0, mlx5_1");
    assert_eq!(none(Wish { port: Some(9), ..wish }), "mlx5_0 has no port 9");
}

#[test]
fn every_port_that_cannot_be_used_says_why() {
    let mut machine = recorded!("connectx3-port-2");
    machine.devices[0].ports[1].gids.clear();
    machine.devices.extend(recorded!("iwarp").devices);
    let reasons = refusal(&machine, &Wish::default());
    let texts: Vec<_> = reasons.iter().map(|(text, _)| text.as_str()).collect();
    assert_eq!(texts[0], "port mlx4_0/1 is DOWN");
    assert_eq!(texts[1], "port mlx4_0/2 has no address");
    assert!(texts[2].starts_with("cxgb4_0 speaks iWARP"));
    assert_eq!(reasons[1].1, "give eth3 an IP address: ip addr add ADDRESS dev eth3");
}

#[test]
fn the_way_to_this_machine_is_over_loopback() {
    let peer = "127.0.0.1:20490".parse().expect("an address");
    assert_eq!(local_address_towards(peer), Some("127.0.0.1".parse().expect("an address")));
}
