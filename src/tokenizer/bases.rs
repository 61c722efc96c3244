//! Removes accents from characters: the canonical decomposition (NFD, Unicode 14) without nonspacing marks.
//! Having our own table saves three dependencies.

use super::categories;

/// Returns `char` without its accents; empty if `char` is itself an accent.
pub fn without_accents(char: char) -> Bases {
    let code = u32::from(char);
    if code < 0x80 {
        return Bases::one(char);
    }
    if categories::category(char) & categories::MN != 0 {
        return Bases([None; 3]);
    }
    if let Some(syllable) = code.checked_sub(HANGUL).filter(|syllable| *syllable < N_SYLLABLES) {
        let (lead, vowel, tail) = (syllable / (21 * 28), syllable / 28 % 21, syllable % 28);
        let jamo = |first: u32, at: u32| char::from_u32(first + at);
        return Bases([jamo(0x1100, lead), jamo(0x1161, vowel), jamo(0x11a7, tail).filter(|_| tail > 0)]);
    }
    if let Ok(at) = PARTS.binary_search_by_key(&char, |(char, _)| *char) {
        let mut parts = PARTS[at].1.chars();
        return Bases([parts.next(), parts.next(), parts.next()]);
    }
    let end = RUNS.partition_point(|(first, _)| *first <= code);
    let found = RUNS[..end].last().and_then(|(first, bases)| bases.chars().nth((code - first) as usize));
    Bases::one(found.unwrap_or(char))
}

pub struct Bases([Option<char>; 3]);

impl Bases {
    fn one(char: char) -> Self {
        Self([Some(char), None, None])
    }
}

impl IntoIterator for Bases {
    type Item = char;
    type IntoIter = std::iter::Flatten<std::array::IntoIter<Option<char>, 3>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter().flatten()
    }
}

/// First Hangul syllable; the syllables are ordered by their parts.
const HANGUL: u32 = 0xac00;
const N_SYLLABLES: u32 = 11172;

/// Characters that decompose into several parts, none of which is an accent.
#[rustfmt::skip]
const PARTS: &[(char, &str)] = &[
    ('\u{9cb}', "\u{9c7}\u{9be}"), ('\u{9cc}', "\u{9c7}\u{9d7}"), ('\u{b4b}', "\u{b47}\u{b3e}"),
    ('\u{b4c}', "\u{b47}\u{b57}"), ('\u{b94}', "\u{b92}\u{bd7}"), ('\u{bca}', "\u{bc6}\u{bbe}"),
    ('\u{bcb}', "\u{bc7}\u{bbe}"), ('\u{bcc}', "\u{bc6}\u{bd7}"), ('\u{ccb}', "\u{cc2}\u{cd5}"),
    ('\u{d4a}', "\u{d46}\u{d3e}"), ('\u{d4b}', "\u{d47}\u{d3e}"), ('\u{d4c}', "\u{d46}\u{d57}"),
    ('\u{ddc}', "\u{dd9}\u{dcf}"), ('\u{ddd}', "\u{dd9}\u{dcf}"), ('\u{dde}', "\u{dd9}\u{ddf}"),
    ('\u{1b06}', "\u{1b05}\u{1b35}"), ('\u{1b08}', "\u{1b07}\u{1b35}"), ('\u{1b0a}', "\u{1b09}\u{1b35}"),
    ('\u{1b0c}', "\u{1b0b}\u{1b35}"), ('\u{1b0e}', "\u{1b0d}\u{1b35}"), ('\u{1b12}', "\u{1b11}\u{1b35}"),
    ('\u{1b40}', "\u{1b3e}\u{1b35}"), ('\u{1b41}', "\u{1b3f}\u{1b35}"), ('\u{1134b}', "\u{11347}\u{1133e}"),
    ('\u{1134c}', "\u{11347}\u{11357}"), ('\u{114bc}', "\u{114b9}\u{114b0}"),
    ('\u{114be}', "\u{114b9}\u{114bd}"), ('\u{115ba}', "\u{115b8}\u{115af}"),
    ('\u{115bb}', "\u{115b9}\u{115af}"), ('\u{11938}', "\u{11935}\u{11930}"),
    ('\u{1d15e}', "\u{1d157}\u{1d165}"), ('\u{1d15f}', "\u{1d158}\u{1d165}"),
    ('\u{1d160}', "\u{1d158}\u{1d165}\u{1d16e}"), ('\u{1d161}', "\u{1d158}\u{1d165}\u{1d16f}"),
    ('\u{1d162}', "\u{1d158}\u{1d165}\u{1d170}"), ('\u{1d163}', "\u{1d158}\u{1d165}\u{1d171}"),
    ('\u{1d164}', "\u{1d158}\u{1d165}\u{1d172}"), ('\u{1d1bb}', "\u{1d1b9}\u{1d165}"),
    ('\u{1d1bc}', "\u{1d1ba}\u{1d165}"), ('\u{1d1bd}', "\u{1d1b9}\u{1d165}\u{1d16e}"),
    ('\u{1d1be}', "\u{1d1ba}\u{1d165}\u{1d16e}"), ('\u{1d1bf}', "\u{1d1b9}\u{1d165}\u{1d16f}"),
    ('\u{1d1c0}', "\u{1d1ba}\u{1d165}\u{1d16f}"),
];

/// First character of a run, and the base of each character in it. Sorted.
#[rustfmt::skip]
const RUNS: &[(u32, &str)] = &[
    (0xc0, "AAAAAAÆCEEEEIIIIÐNOOOOO×ØUUUUYÞßaaaaaaæceeeeiiiiðnooooo÷øuuuuyþyAaAaAaCcCcCcCcDdĐđEe"),
    (0x114, "EeEeEeEeGgGgGgGgHhĦħIiIiIiIiI"), (0x134, "JjKkĸLlLlLl"), (0x143, "NnNnNn"),
    (0x14c, "OoOoOoŒœRrRrRrSsSsSsSsTtTtŦŧUuUuUuUuUuUuWwYyYZzZzZz"), (0x1a0, "Oo"), (0x1af, "Uu"),
    (0x1cd, "AaIiOoUuUuUuUuUuǝAaAaÆæǤǥGgKkOoOoƷʒj"), (0x1f4, "GgǶǷNnAaÆæØøAaAaEeEeIiIiOoOoRrRrUuUuSsTtȜȝHh"),
    (0x226, "AaEeOoOoOoOoYy"), (0x374, "ʹ"), (0x37e, ";"), (0x385, "¨Α·ΕΗΙ"), (0x38c, "Ο"), (0x38e, "ΥΩι"),
    (0x3aa, "ΙΥαεηιυ"), (0x3ca, "ιυουω"), (0x3d3, "ϒϒ"), (0x400, "ЕЕЂГ"), (0x407, "І"), (0x40c, "КИУ"),
    (0x419, "И"), (0x439, "и"), (0x450, "ееђг"), (0x457, "і"), (0x45c, "киу"), (0x476, "Ѵѵ"), (0x4c1, "Жж"),
    (0x4d0, "АаАаӔӕЕеӘәӘәЖжЗзӠӡИиИиОоӨөӨөЭэУуУуУуЧчӶӷЫы"), (0x622, "\u{627}\u{627}\u{648}\u{627}\u{64a}"),
    (0x6c0, "\u{6d5}\u{6c1}\u{6c1}"), (0x6d3, "\u{6d2}"), (0x929, "न"), (0x931, "रलळळ"), (0x958, "कखगजडढफय"),
    (0x9dc, "ডঢ"), (0x9df, "য"), (0xa33, "ਲ"), (0xa36, "ਸ"), (0xa59, "ਖਗਜ"), (0xa5e, "ਫ"), (0xb48, "\u{b47}"),
    (0xb5c, "ଡଢ"), (0xcc0, "\u{cd5}"), (0xcc7, "\u{cd5}\u{cd6}"), (0xcca, "\u{cc2}"), (0xdda, "\u{dd9}"),
    (0xf43, "ག"), (0xf4d, "ཌ"), (0xf52, "ད"), (0xf57, "བ"), (0xf5c, "ཛ"), (0xf69, "ཀ"), (0x1026, "ဥ"),
    (0x1b3b, "\u{1b35}"), (0x1b3d, "\u{1b35}"), (0x1b43, "\u{1b35}"),
    (0x1e00, "AaBbBbBbCcDdDdDdDdDdEeEeEeEeEeFfGgHhHhHhHhHhIiIiKkKkKkLlLlLlLlMmMmMmNnNnNnNnOoOoOoOo"),
    (0x1e54, "PpPpRrRrRrRrSsSsSsSsSsTtTtTtTtUuUuUuUuUuVvVvWwWwWwWwWwXxXxYyZzZzZzhtwyẚſ"),
    (0x1ea0, "AaAaAaAaAaAaAaAaAaAaAaAaEeEeEeEeEeEeEeEeIiIiOoOoOoOoOoOoOoOoOoOoOoOoUuUuUuUuUuUuUuYy"),
    (0x1ef4, "YyYyYy"), (0x1f00, "ααααααααΑΑΑΑΑΑΑΑεεεεεε"), (0x1f18, "ΕΕΕΕΕΕ"),
    (0x1f20, "ηηηηηηηηΗΗΗΗΗΗΗΗιιιιιιιιΙΙΙΙΙΙΙΙοοοοοο"), (0x1f48, "ΟΟΟΟΟΟ"), (0x1f50, "υυυυυυυυ"),
    (0x1f59, "Υ"), (0x1f5b, "Υ"), (0x1f5d, "Υ"), (0x1f5f, "ΥωωωωωωωωΩΩΩΩΩΩΩΩααεεηηιιοουυωω"),
    (0x1f80, "ααααααααΑΑΑΑΑΑΑΑηηηηηηηηΗΗΗΗΗΗΗΗωωωωωωωωΩΩΩΩΩΩΩΩααααα"), (0x1fb6, "ααΑΑΑΑΑ᾽ι᾿῀¨ηηη"),
    (0x1fc6, "ηηΕΕΗΗΗ᾿᾿᾿ιιιι"), (0x1fd6, "ιιΙΙΙΙ"), (0x1fdd, "῾῾῾υυυυρρυυΥΥΥΥΡ¨¨`"), (0x1ff2, "ωωω"),
    (0x1ff6, "ωωΟΟΩΩΩ´"), (0x2000, "\u{2002}\u{2003}"), (0x2126, "Ω"), (0x212a, "KA"), (0x219a, "←→"),
    (0x21ae, "↔"), (0x21cd, "⇐⇔⇒"), (0x2204, "∃"), (0x2209, "∈∊∋∋"), (0x2224, "∣∥∥"), (0x2241, "∼≂≃≃≅≆≅≈≈"),
    (0x2260, "=≡≡"), (0x226d, "≍<>≤≥≲≳≲≳≶≷≶≷"), (0x2280, "≺≻⊂⊃⊂⊃⊆⊇⊆⊇"), (0x22ac, "⊢⊨⊩⊫"), (0x22e0, "≼≽⊑⊒"),
    (0x22ea, "⊲⊳⊴⊵"), (0x2329, "〈〉"), (0x2adc, "⫝"),
    (0x304c, "かききくくけけここささししすすせせそそたたちちっつつててとと"),
    (0x3070, "ははひひひふふふへへへほほほ"), (0x3094, "う"), (0x309e, "ゝ"),
    (0x30ac, "カキキククケケココササシシススセセソソタタチチッツツテテトト"),
    (0x30d0, "ハハヒヒヒフフフヘヘヘホホホ"), (0x30f4, "ウヵヶワヰヱヲ"), (0x30fe, "ヽ"),
    (0xf900, "豈更車賈滑串句龜龜契金喇奈懶癩羅蘿螺裸邏樂洛烙珞落酪駱亂卵欄爛蘭鸞嵐濫藍襤拉臘蠟廊朗"),
    (0xf92a, "浪狼郎來冷勞擄櫓爐盧老蘆虜路露魯鷺碌祿綠菉錄鹿論壟弄籠聾牢磊賂雷壘屢樓淚漏累縷陋勒肋"),
    (0xf954, "凜凌稜綾菱陵讀拏樂諾丹寧怒率異北磻便復不泌數索參塞省葉說殺辰沈拾若掠略亮兩凉梁糧良諒"),
    (0xf97e, "量勵呂女廬旅濾礪閭驪麗黎力曆歷轢年憐戀撚漣煉璉秊練聯輦蓮連鍊列劣咽烈裂說廉念捻殮簾獵"),
    (0xf9a8, "令囹寧嶺怜玲瑩羚聆鈴零靈領例禮醴隸惡了僚寮尿料樂燎療蓼遼龍暈阮劉杻柳流溜琉留硫紐類六"),
    (0xf9d2, "戮陸倫崙淪輪律慄栗率隆利吏履易李梨泥理痢罹裏裡里離匿溺吝燐璘藺隣鱗麟林淋臨立笠粒狀炙"),
    (0xf9fc, "識什茶刺切度拓糖宅洞暴輻行降見廓兀嗀﨎﨏塚﨑晴﨓﨔凞猪益礼神祥福靖精羽﨟蘒﨡諸﨣﨤逸"),
    (0xfa26, "都"),
    (0xfa2a, "飯飼館鶴郞隷侮僧免勉勤卑喝嘆器塀墨層屮悔慨憎懲敏既暑梅海渚漢煮爫琢碑社祉祈祐祖祝禍禎"),
    (0xfa54, "穀突節練縉繁署者臭艹艹著褐視謁謹賓贈辶逸難響頻恵\u{242ee}舘"),
    (0xfa70, "並况全侀充冀勇勺喝啕喙嗢塚墳奄奔婢嬨廒廙彩徭惘慎愈憎慠懲戴揄搜摒敖晴朗望杖歹殺流滛滋"),
    (0xfa9a, "漢瀞煮瞧爵犯猪瑱甆画瘝瘟益盛直睊着磌窱節类絛練缾者荒華蝹襁覆視調諸請謁諾諭謹變贈輸遲"),
    (0xfac4, "醙鉶陼難靖韛響頋頻鬒龜\u{2284a}\u{22844}\u{233d5}㮝䀘䀹\u{25249}\u{25cd0}\u{27ed3}齃"),
    (0xfad9, "龎"), (0xfb1d, "\u{5d9}"), (0xfb1f, "\u{5f2}"),
    (0xfb2a, "\u{5e9}\u{5e9}\u{5e9}\u{5e9}\u{5d0}\u{5d0}\u{5d0}\u{5d1}\u{5d2}\u{5d3}\u{5d4}\u{5d5}"),
    (0xfb36, "\u{5d6}"), (0xfb38, "\u{5d8}\u{5d9}\u{5da}\u{5db}\u{5dc}"), (0xfb3e, "\u{5de}"),
    (0xfb40, "\u{5e0}\u{5e1}"), (0xfb43, "\u{5e3}\u{5e4}"),
    (0xfb46, "\u{5e6}\u{5e7}\u{5e8}\u{5e9}\u{5ea}\u{5d5}\u{5d1}\u{5db}\u{5e4}"), (0x1109a, "𑂙𑂛𑂛"),
    (0x110ab, "𑂥"), (0x114bb, "\u{114b9}"),
    (0x2f800, "丽丸乁\u{20122}你侮侻倂偺備僧像㒞\u{2063a}免兔兤具\u{2051c}㒹內再\u{2054b}冗冤仌冬况"),
    (0x2f81c, "\u{291df}凵刃㓟刻剆割剷㔕勇勉勤勺包匆北卉卑博即卽卿卿卿\u{20a2c}灰及叟\u{20b63}叫叱"),
    (0x2f83b, "吆咞吸呈周咢哶唐啓啣善善喙喫喳嗂圖嘆圗噑噴切壮城埴堍型堲報墬\u{214e4}売壷夆多夢奢"),
    (0x2f860, "\u{216a8}\u{216ea}姬娛娧姘婦㛮㛼嬈嬾嬾\u{219c8}寃寘寧寳\u{21b18}寿将当尢㞁屠屮峀岍"),
    (0x2f87b, "\u{21de4}嵃\u{21de6}嵮嵫嵼巡巢㠯巽帨帽幩㡢\u{22183}㡼庰庳庶廊\u{2a392}廾\u{22331}"),
    (0x2f892, "\u{22331}舁弢弢㣇\u{232b8}\u{261da}形彫㣣徚忍志忹悁㤺㤜悔\u{226d4}惇慈慌慎慌慺憎憲憤"),
    (0x2f8ae, "憯懞懲懶成戛扝抱拔捐\u{22b0c}挽拼捨掃揤\u{22bf1}搢揅掩㨮摩摾撝摷㩬敏敬\u{2300a}旣書"),
    (0x2f8cd, "晉㬙暑㬈㫤冒冕最暜肭䏙朗望朡杞杓\u{233c3}㭉柺枅桒梅\u{2346d}梎栟椔㮝楂榣槪檨"),
    (0x2f8ec, "\u{236a3}櫛㰘次\u{238a7}歔㱎歲殟殺殻\u{23a8d}\u{21d0b}\u{23afa}汎\u{23cbc}沿泍汧洖派"),
    (0x2f901, "海流浩浸涅\u{23d1e}洴港湮㴳滋滇\u{23ed1}淹潮\u{23f5e}\u{23f8e}濆瀹瀞瀛㶖灊災灷炭"),
    (0x2f91b, "\u{20525}煅\u{24263}熜\u{243ab}爨爵牐\u{24608}犀犕\u{24735}\u{24814}獺王㺬玥㺸㺸瑇瑜"),
    (0x2f930, "瑱璅瓊㼛甤\u{24c36}甾\u{24c92}異\u{2219f}瘐\u{24fa1}\u{24fb8}\u{25044}㿼䀈直"),
    (0x2f941, "\u{250f3}\u{250f2}\u{25119}\u{25133}眞真真睊䀹瞋䁆䂖\u{2541d}硎碌磌䃣\u{25626}祖"),
    (0x2f954, "\u{2569a}\u{256c5}福秫䄯穀穊穏\u{2597c}\u{25aa7}\u{25aa7}竮䈂\u{25bab}篆築䈧"),
    (0x2f965, "\u{25c80}糒䊠糨糣紀\u{25f86}絣䌁緇縂繅䌴\u{26228}\u{26247}䍙\u{262d9}罺\u{2633e}羕翺"),
    (0x2f97a, "者\u{264da}\u{26523}聠\u{265a8}聰\u{2335f}䏕育脃䐋脾媵\u{267a7}\u{267b5}\u{23393}"),
    (0x2f98a, "\u{2339c}舁舄辞䑫芑芋芝劳花芳芽苦\u{26b3c}若茝荣莭茣莽菧著荓菊菌菜\u{26c36}\u{26d6b}"),
    (0x2f9a6, "\u{26cd5}䔫蓱蓳蔖\u{273ca}蕤\u{26f2c}䕝䕡\u{26fb1}\u{270d2}䕫虐虜虧虩蚩蚈蜎蛢蝹蜨蝫"),
    (0x2f9be, "螆䗗蟡蠁䗹衠衣\u{27667}裗裞䘵裺㒻\u{278ae}\u{27966}䚾䛇誠諭變豕\u{27ca8}貫賁贛起"),
    (0x2f9d8, "\u{27f2f}\u{20804}跋趼跰\u{208de}軔輸\u{285d2}\u{285ed}邔郱鄑\u{2872e}鄛鈸鋗鋘鉼鏹鐕"),
    (0x2f9ed, "\u{28bfa}開䦕閷\u{28d77}䧦雃嶲霣\u{29145}\u{2921a}䩮䩶韠\u{2940a}䪲\u{29496}頋頋頩"),
    (0x2fa01, "\u{295b6}飢䬳餩馧駂駾䯎\u{29b30}鬒鱀鳽䳎䳭鵧\u{2a0ce}䳸\u{2a105}\u{2a20e}\u{2a291}麻"),
    (0x2fa16, "䵖黹黾鼅鼏鼖鼻\u{2a600}"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> String {
        text.chars().flat_map(without_accents).collect()
    }

    #[test]
    fn letters_lose_their_accents() {
        assert_eq!(all("Crème brûlée, ångström, Łódź, Việt Nam"), "Creme brulee, angstrom, Łodz, Viet Nam");
        assert_eq!(all("Ἀθῆναι ёлка й ø æ"), "Αθηναι елка и ø æ");
        assert_eq!(all("e\u{301}\u{344}\u{5b0}"), "e");
        assert_eq!(all("\u{212b}\u{2126}\u{37e}\u{f900}\u{2f800}"), "AΩ;豈丽");
    }

    #[test]
    fn syllables_come_apart() {
        assert_eq!(all("한가"), "\u{1112}\u{1161}\u{11ab}\u{1100}\u{1161}");
        assert_eq!(all("\u{d7a3}"), "\u{1112}\u{1175}\u{11c2}");
        assert_eq!(all("\u{9cb}"), "\u{9c7}\u{9be}");
    }

    #[test]
    fn tables_are_in_order_and_bases_stay_as_they_are() {
        assert!(PARTS.is_sorted_by(|a, b| a.0 < b.0));
        let ends = RUNS.iter().map(|(first, bases)| first + bases.chars().count() as u32);
        assert!(ends.zip(&RUNS[1..]).all(|(end, (next, _))| end <= *next));
        for char in char::MIN..=char::MAX {
            let once: String = without_accents(char).into_iter().collect();
            assert_eq!(all(&once), once, "{char:?}");
        }
    }
}
